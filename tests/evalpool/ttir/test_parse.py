"""Texts of modules: what is read, and what is refused with its line."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.trial.programs import _read_text
from forge.evalpool.judge.ttir import parse as reader
from forge.evalpool.judge.ttir.parse import InvalidModule, parse
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.tree import (
    Block,
    Descriptor,
    Module,
    Operation,
    Pointer,
    Scalar,
    Type,
)
from forge.evalpool.judge.ttir.values import Unsupported
from forge.evalpool.judge.ttir.verify import operations_of, uses_of, verify
from tests.evalpool.ttir.kernels import TEXTS, kernel, text

F32 = Scalar("f32")


def only(body: str) -> Operation:
    """The operation before the return of a kernel with this body."""
    function = parse(kernel("%x: !tt.ptr<f32>, %n: i32", body)).functions["k"]
    return function.body.blocks[0].operations[-2]


@pytest.mark.parametrize("name", sorted(path.stem for path in TEXTS.glob("*.mlir")))
def test_texts_of_triton_are_valid(name: str) -> None:
    module = parse(text(name))
    verify(module)
    indices = [one.index for each in module.functions.values() for one in operations_of(each)]
    assert indices == sorted(set(indices))


@pytest.mark.parametrize(
    ("literal", "kind", "value"),
    [
        ("dense<0xFF800000>", "tensor<4xf32>", -np.inf),
        ("0x7FC00000", "f32", np.nan),
        ("0xFC00", "f16", -np.inf),
        ("0x3F80", "bf16", 1.0),
        ("dense<-1.500000e+00>", "tensor<2x2xf64>", -1.5),
        ("-7", "i32", -7),
        ("4294967295", "i32", -1),
        ("true", "i1", True),
        ("dense<true>", "tensor<4xi1>", True),
    ],
)
def test_constants_have_their_values(literal: str, kind: str, value: float) -> None:
    typed = literal if literal == "true" else f"{literal} : {kind}"
    found = only(f"    %c = arith.constant {typed}").attributes["value"]
    assert found == value or (found != found and value != value)


def test_a_dense_list_has_its_shape() -> None:
    found = only("    %c = arith.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>")
    assert np.array_equal(found.attributes["value"], [[1, 2], [3, 4]])


def test_words_and_attributes_have_names() -> None:
    compared = only("    %m = arith.cmpi slt, %pid, %n : i32")
    assert compared.attributes["predicate"] == "slt"
    assert compared.types.results == (Scalar("i1"),)
    line = (
        "    %v = tt.load %x {cachePolicy = #tt.cache_policy<cache_modifier = cg>} : !tt.ptr<f32>"
    )
    assert only(line).attributes["cachePolicy"] == {"cache_modifier": "cg"}
    old = only("    %v = tt.load %x cacheModifier = cg evictionPolicy = evict_last : !tt.ptr<f32>")
    assert old.attributes["evictionPolicy"] == "evict_last"
    assert old.types.results == (F32,)


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        (
            ["!tt.tensordesc<32x64xf16>", "!tt.tensordesc<tensor<32x64xf16>>"],
            Descriptor(Block((32, 64), Scalar("f16"))),
        ),
        (["!tt.ptr<f32>", "!tt.ptr<f32, 1>", '!tt.ptr<f32, "constant">'], Pointer(F32)),
        (
            ["tensor<4x!tt.ptr<f32>>", 'tensor<4x!tt.ptr<f32, "constant">>'],
            Block((4,), Pointer(F32)),
        ),
    ],
)
def test_types_of_old_and_new_versions_are_one_type(kinds: list[str], wanted: Type) -> None:
    arguments = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(kinds))
    source = f"module {{ tt.func public @k({arguments}) {{ tt.return }} }}"
    assert set(parse(source).functions["k"].arguments) == {wanted}


def test_a_pointer_argument_says_what_is_done_with_it() -> None:
    uses = uses_of(parse(text("locked_sum")), "red")
    facts = [one and (one.is_read, one.is_written) for one in uses]
    assert facts == [(True, False), (True, True), (True, True), (True, True), None]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    %a = arith.addi %missing, %n : i32", "line 9: %missing is not defined"),
        ("    %a = arith.addi %n, %x : i32", "line 9: arith.addi: types do not fit"),
        ("    %a:2 = arith.addi %n, %n : i32", "line 9: arith.addi has 1 results, not 2"),
        ("    %a = tt.load %n : i32", "line 9: tt.load: types do not fit: i32"),
        ("    %a = arith.constant 1 : i999", "line 9: type i999 is not supported"),
        ("    %a = arith.constant dense<0> : tensor<9999999x99xi32>", "too large"),
        ("    cf.br ^bb7", "line 9: no block bb7"),
        ("    %a = arith.constant dense<[1, 2]> : tensor<4xi32>", "2 numbers for"),
        ("    %a = arith.constant dense<1> : tensor<3xi32>", "powers of two"),
    ],
)
def test_an_error_names_its_line(body: str, words: str) -> None:
    with pytest.raises(InvalidModule, match=words):
        parse(kernel("%x: !tt.ptr<f32>, %n: i32", body))


@pytest.mark.parametrize("name", ["llvm.inline_asm", "tt.int_to_ptr", "gpu.thread_id"])
def test_an_operation_beyond_the_closed_list_is_refused(name: str) -> None:
    with pytest.raises(InvalidModule, match=f"{name} is not allowed"):
        verify(parse(kernel("%n: i32", f"    %a = {name} %n : i32 -> i32")))


def test_nesting_is_bounded() -> None:
    deep = "scf.if %c {\n" * 100 + "}\n" * 100
    with pytest.raises(InvalidModule, match="nested deeper"):
        parse(kernel("%c: i1", deep))


def test_operations_are_bounded_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_OPERATIONS", 5)
    with pytest.raises(InvalidModule, match="more than 5 operations"):
        parse(kernel("%n: i32", "%a = arith.addi %n, %n : i32 " * 5))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tt.load %8, %6, %cst_3", "tt.load %8, %4, %cst_3"),
        (
            "7, %4 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>",
            "7, %1 : tensor<128x!tt.ptr<f32>>, i32",
        ),
        ("end = 128", "end = 64"),
        ("iter_args(%arg7 = %cst_2)", "iter_args(%arg7 = %4)"),
        ("scf.yield %54 : tensor<128xf32>", "scf.yield %48 : tensor<128xi32>"),
        ("tt.reduce.return %52, %53 : f32, i32", "tt.reduce.return %53, %52 : i32, f32"),
        ("%21 = arith.subf %9, %20 : tensor<128xf32>", "%21 = arith.subf %4, %2 : tensor<128xi32>"),
        ("arith.cmpi slt, %4, %5", "arith.cmpi oeq, %4, %5"),
        ("%16 : f32 -> tensor<128xf32>", "%16 : f64 -> tensor<128xf32>"),
        ("constant 1.000000e+00 : f32", "constant 1 : f32"),
        ("(%arg4, %arg3) : (f32, i32)", "(%arg3, %arg4) : (i32, f32)"),
        ("cf.cond_br %41", "cf.cond_br %arg5"),
        ("addf %arg0, %2", "addf %1, %2"),
        ("%arg2 : !tt.ptr<f32> -> !tt.ptr<i32>", "%arg2 : !tt.ptr<f32> -> i64"),
        ("cmpi eq, %arg5, %c3_i32 : i32", "cmpi eq, %arg0, %arg1 : !tt.ptr<f32>"),
        ("%4 = arith.addi %3, %2", "%3 = arith.addi %3, %2"),
    ],
)
def test_a_change_that_triton_refuses_is_refused(before: str, after: str) -> None:
    """A child that was taken over may send any text, and on a CPU nothing is compiled."""
    source = text("triton_3_6_many")
    assert before in source
    with pytest.raises(InvalidModule):
        plan_of(source.replace(before, after, 1))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_texts_are_read_or_refused(data: st.DataObject) -> None:
    source = text(data.draw(st.sampled_from(["collatz", "descriptor", "branching_maximum"])))
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, min(start + 40, len(source))))
    added = data.draw(st.sampled_from(["", "%", "(", "}", "tensor<", "^bb1", '"', "-> ", "0x"]))
    with suppress(InvalidModule, Unsupported):
        plan_of(source[:start] + added + source[end:])


@pytest.mark.parametrize("name", [r'"a\32"', '"é"', '"a\tb"', "a-b", "1a", '"a'])
def test_a_symbol_that_two_readers_may_take_for_different_is_refused(name: str) -> None:
    with pytest.raises(InvalidModule):
        parse(f"module {{\n  tt.func private @{name}() {{\n    tt.return\n  }}\n}}\n")


def test_a_symbol_with_a_constant_in_it_is_read() -> None:
    module = parse('module {\n  tt.func private @"f__1c(1,)"() {\n    tt.return\n  }\n}\n')
    assert list(module.functions) == ["f__1c(1,)"]


def chain(num_blocks: int) -> str:
    """Blocks in reverse order that hand a pointer on."""
    blocks = "".join(
        f"^b{k}(%v{k}: !tt.ptr<f32>):\n cf.br ^b{k - 1}(%v{k} : !tt.ptr<f32>)\n"
        for k in range(1, num_blocks)
    )
    first = f" cf.br ^b{num_blocks - 1}(%x : !tt.ptr<f32>)\n"
    last = "^b0(%z: !tt.ptr<f32>):\n %one = tt.load %z : !tt.ptr<f32>\n tt.return\n"
    head = "module {\n tt.func public @k(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {\n"
    return f"{head}{first}{blocks}{last} }}\n}}\n"


def test_uses_of_a_long_chain_of_blocks_are_not_sought_for_ever() -> None:
    """Each pass follows an address by one block."""
    first, second = uses_of(parse(chain(20)), "k")
    assert first.is_read
    assert not second.is_read
    with pytest.raises(InvalidModule, match="too often"):
        uses_of(parse(chain(400)), "k")
    with pytest.raises(InvalidModule, match="blocks"):
        parse(kernel("%n: i32", "".join(f"^b{k}:\n" for k in range(1001))))


def reduction(num_blocks: int) -> Module:
    """A reduction whose region has so many blocks; each may go on in each other one."""
    blocks = "".join(f"cf.br ^b{k}\n^b{k}:\n" for k in range(1, num_blocks))
    region = f"^b0(%a: i32, %b: i32):\n{blocks}tt.reduce.return %a : i32\n"
    line = f'%r = "tt.reduce"(%i) <{{axis = 0 : i32}}> ({{\n{region}}}) : (tensor<16xi32>) -> i32'
    return parse(kernel("%n: i32", line))


def test_a_region_of_an_operation_has_few_blocks() -> None:
    verify(reduction(64))
    with pytest.raises(InvalidModule, match="blocks"):
        verify(reduction(65))


def test_a_function_that_calls_itself_is_refused() -> None:
    """Its accesses would depend on themselves."""
    text = (
        "module {\n tt.func public @k(%x: !tt.ptr<f32>) {\n"
        " tt.call @f(%x) : (!tt.ptr<f32>) -> ()\n tt.return\n }\n"
        " tt.func private @f(%x: !tt.ptr<f32>) {\n"
        " tt.call @f(%x) : (!tt.ptr<f32>) -> ()\n tt.return\n }\n}\n"
    )
    with pytest.raises(InvalidModule, match="calls itself"):
        uses_of(parse(text), "k")


@pytest.mark.parametrize("body", ["", " tt.store\n tt.return\n"])
def test_a_function_without_what_it_needs_is_refused(body: str) -> None:
    module = f"module {{\n tt.func public @k(%x: !tt.ptr<f32>) {{\n{body} }}\n}}\n"
    with pytest.raises(InvalidModule):
        _read_text(module, "k")
    with suppress(Unsupported), pytest.raises(InvalidModule):
        plan_of(module).uses("k")
