"""The closed list: what a text, a module or inline assembly may not hold."""

import pytest

from forge.evalpool.judge.compiler.child import check_ttir, open_target, takes
from forge.evalpool.judge.compiler.text import Refused, check_text, operations, source_line, without
from forge.evalpool.judge.program import dialect
from forge.evalpool.judge.program.format import Kernel, Parameter
from tests.evalpool.compiler.kernels import DOUBLE, TARGET, make_kernel, with_operation


def refusal(kernel: Kernel) -> str:
    """The message of a kernel that must be refused."""
    with pytest.raises(Refused) as caught:
        check_ttir(kernel, open_target(TARGET))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("%9 = llvm.mlir.zero : !llvm.ptr", "llvm.mlir.zero"),
        ('%9 = llvm.inline_asm "trap;", "=r" : () -> i32', "llvm.inline_asm"),
        ('%9 = llvm.call_intrinsic "llvm.nvvm.read.ptx.sreg.tid.x"() : () -> i32', "llvm.call"),
        ("nvvm.barrier0", "nvvm.barrier0"),
        ("%9 = nvvm.read.ptx.sreg.globaltimer : i64", "nvvm.read.ptx.sreg.globaltimer"),
        ("%9 = ttg.local_alloc : () -> !ttg.memdesc<1xi32>", "ttg.local_alloc"),
        ("%9 = gpu.thread_id x", "gpu.thread_id"),
        ('cf.assert %true, "no"', "cf.assert"),
        ("%9 = tt.int_to_ptr %c : i64 -> !tt.ptr<f32>", "tt.int_to_ptr"),
        ('%9 = "tt.int_to_ptr"(%c) : (i64) -> !tt.ptr<f32>', "tt.int_to_ptr"),
        ("%9 = builtin.unrealized_conversion_cast %c : i64 to !tt.ptr<f32>", "builtin.unrealized"),
    ],
)
def test_an_operation_outside_the_list_is_refused(line: str, operation: str) -> None:
    constant = "%c = arith.constant 64 : i64\n    %true = arith.constant true"
    assert operation in refusal(with_operation(f"{constant}\n    {line}"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("module {", "module attributes {ttg.maxnreg = 8 : i32} {", "ttg.maxnreg"),
        ("module {", 'module attributes {"ttg.num-warps" = 64 : i32} {', "ttg.num-warps"),
        ("noinline = false", 'noinline = false, "a-b"', '"a-b" where'),
        ("noinline = false", 'sym_name = "a", "b" = 1', '"b" where'),
        ("noinline = false", 'libname = ["a"]', '"a" where'),
        ("noinline = false", 'noinline = false, passthrough = ["optnone"]', "passthrough"),
        ("noinline = false", "llvm.linkage = 1 : i32", "llvm.linkage"),
        ("!tt.ptr<f32>)", "!tt.ptr<f32, 3>)", "!tt.ptr<f32,"),
        ("!tt.ptr<f32>)", '!tt.ptr<f32, "shared">)', "!tt.ptr<f32,"),
        ("noinline = false", 'noinline = false, "constant"', '"constant" where'),
        ("!tt.ptr<f32>)", "!tt.ptr<!tt.ptr<f32>>)", "!tt.ptr<!tt.ptr"),
        ("    %4 =", "    // ordinary\n    %4 =", "MLIR prints"),
        (": tensor<128xf32>\n    %5", ":   tensor<128xf32>\n    %5", "MLIR prints"),
        ("end = 128 : i32, start = 0 : i32", "start = 0 : i32, end = 128 : i32", "MLIR prints"),
        ("@double", "@triple", "public 'triple'"),
        ("public @double", "private @double", "0 public functions"),
        ("%arg1: !tt.ptr<f32>)", "%arg1: !tt.ptr<f32>, %arg2: i64)", "kernel's parameters"),
        ("end = 128", "end = dense_resource<a>", "dense_resource"),
        ("tt.return", "tt.return loc(unknown)", "loc"),
        ("tt.return", "tt.return é", "ASCII"),
        ("tt.return", "tt.return \\", "character"),
    ],
)
def test_a_changed_text_is_refused(before: str, after: str, message: str) -> None:
    text = DOUBLE
    assert before in text
    assert message in refusal(make_kernel(text.replace(before, after)))


HELPER = """  tt.func private @{name}(%arg0: i64) -> i64 attributes {{noinline = true}}{body}
}}
"""


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("malloc", "", "has no body"),
        ("vprintf", "", "has no body"),
        ("__nv_sinf", " {\n    tt.return %arg0 : i64\n  }", "reserved"),
        ("llvm.trap", " {\n    tt.return %arg0 : i64\n  }", "reserved"),
    ],
)
def test_a_function_of_a_library_is_refused(name: str, body: str, message: str) -> None:
    text = DOUBLE.removesuffix("}\n") + HELPER.format(name=name, body=body)
    assert message in refusal(make_kernel(text))


def test_a_private_helper_passes() -> None:
    body = " {\n    tt.return %arg0 : i64\n  }"
    text = DOUBLE.removesuffix("}\n") + HELPER.format(name="__main__.helper__i64", body=body)
    assert check_ttir(make_kernel(text), open_target(TARGET)) is not None


def test_a_constant_pointer_passes() -> None:
    text = DOUBLE.replace("arg0: !tt.ptr<f32>", 'arg0: !tt.ptr<f32, "constant">')
    for end in ("1 =", "2 =", "3 ="):
        at = text.index(f"%{end}")
        line = text[at : text.index("\n", at)]
        text = text.replace(line, line.replace("<f32>", '<f32, "constant">'))
    check_ttir(make_kernel(text, types=("*kfp32", "*fp32")), open_target(TARGET))


def test_two_public_functions_are_refused() -> None:
    second = DOUBLE.removeprefix("module {\n").replace("@double", "@second")
    assert "public 'second'" in refusal(make_kernel(DOUBLE.removesuffix("}\n") + second))


@pytest.mark.parametrize(
    ("symbol", "types", "message"),
    [
        ("__nv_sincosf", "(tensor<128xf32>) -> tensor<128xf32>", "not in the closed list"),
        ("malloc", "(tensor<128xf32>) -> tensor<128xf32>", "not in the closed list"),
        ("__nv_expf", "(tensor<128xf32>) -> tensor<128xi32>", "as f32 -> i32"),
    ],
)
def test_a_library_function_has_its_true_signature(symbol: str, types: str, message: str) -> None:
    assert message in refusal(with_operation(extern(symbol, types)))


def extern(symbol: str, types: str, *, path: str = "") -> str:
    properties = f'libname = "", libpath = "{path}", pure = true, symbol = "{symbol}"'
    result = types.rsplit("-> ", 1)[1]
    number = "%9" if result else ""
    return f"{number} = tt.extern_elementwise %3 {{{properties}}} : {types}"


def test_a_library_is_not_named_by_path() -> None:
    line = extern("__nv_expf", "(tensor<128xf32>) -> tensor<128xf32>", path="/tmp/evil.bc")
    assert "names a library" in refusal(numbered(line))


def numbered(line: str) -> Kernel:
    """The kernel with this operation as `%5`, the later values renumbered as MLIR does."""
    text = DOUBLE.replace("%6", "%7").replace("%5", "%6")
    added = line.replace("%9", "%5")
    return make_kernel(text.replace("    %6 = tt.splat", f"    {added}\n    %6 = tt.splat"))


@pytest.mark.parametrize(
    ("template", "constraints"),
    [
        ("mov.u64 $0, %globaltimer;", "=l"),
        ("ld.global.u32 $0, [$1];", "=r,l"),
        ("trap;", "=r"),
        ("add.f32 $0, $1, $1;", "=f,f"),
        ("tanh.approx.f32 $0, $1;", "=f,f,~{memory}"),
        ("tanh.approx.f32 $0, $1; trap;", "=f,f"),
        ("tanh.approx.f32 $0, [$1];", "=f,l"),
        ("tanh.approx.f16x2 $0, $1;", "=r,r"),
    ],
)
def test_other_assembly_is_refused_by_its_template(template: str, constraints: str) -> None:
    assert template in dialect.refused_assembly(template, constraints)


@pytest.mark.parametrize(
    ("template", "constraints"),
    [("tanh.approx.f32 $0, $1;", "=r,r"), (" ex2.approx.ftz.f32 $0,$1", "=f, f")],
)
def test_one_approximate_instruction_passes(template: str, constraints: str) -> None:
    assert dialect.refused_assembly(template, constraints) == ""


def test_assembly_is_looked_at_in_the_module() -> None:
    head = '%9 = tt.elementwise_inline_asm "mov.u32 $0, %clock;"'
    line = f'{head} {{constraints = "=r,r", packed_element = 1 : i32, pure = false}}'
    found = refusal(numbered(f"{line} %3 : tensor<128xf32> -> tensor<128xi32>"))
    assert "mov.u32 $0, %clock;" in found


def test_prints_and_asserts_are_stripped() -> None:
    line = 'tt.print " %n%n: " {hex = false, isSigned = array<i32: 0>} : %4 : tensor<128xf32>'
    kernel = with_operation(line)
    module = check_ttir(kernel, open_target(TARGET))
    assert module.str_nodebug() == DOUBLE
    assert without(kernel.ttir, dialect.STRIPPED) == DOUBLE


@pytest.mark.parametrize(
    ("found", "types"),
    [
        (["*f32", "i32", "f16", "i1"], ["*fp32", "u32", "fp16", "i1"]),
        (["*i1", "*f8E4M3FN", "*i8"], ["*i1", "*fp8e4nv", "*fp8e4b15"]),
        (["*f32"], ["*kfp32"]),
        (["!tt.tensordesc<64x32xf16>", "i32", "i32"], ["tensordesc<fp16[64, 32]>", "i32", "i32"]),
        (["!tt.tensordesc<tensor<64xf16>>"], ["tensordesc<fp16[64]>"]),
        (["*f16", "i64", "i64", "i1", "i1"], ["tensordesc<fp16[64]>"]),
        (["*f16", "i64", "i64", "i1"], ["tensordesc<fp16[64]>"]),
    ],
)
def test_signatures_that_agree(found: list[str], types: list[str]) -> None:
    parameters = [Parameter(name="p", type=kind) for kind in types]
    assert takes(found, parameters)
    assert not takes([*found, "i32"], parameters)
    assert not takes(found[1:], parameters)


def test_a_line_of_text_leads_to_the_source() -> None:
    lines = tuple(100 + number for number, _ in enumerate(operations(DOUBLE)))
    names = [name for _, name in operations(DOUBLE)]
    assert names[:3] == ["builtin.module", "tt.func", "tt.make_range"]
    row = DOUBLE.split("\n").index("    tt.return") + 1
    assert source_line(DOUBLE, lines, row) == 100 + names.index("tt.return")
    assert source_line(DOUBLE, (), row) == 0


def test_words_are_checked_without_triton() -> None:
    check_text(DOUBLE)
    with pytest.raises(Refused, match=r"tt\.int_to_ptr: 'tt\.int_to_ptr'") as caught:
        check_text(DOUBLE.replace("tt.make_range", "tt.int_to_ptr"))
    assert caught.value.text_line == 3
