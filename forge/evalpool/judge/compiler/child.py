"""Compiles one kernel in the sandbox and ends. Forked by the zygote; the text may be hostile.

`python -m forge.evalpool.judge.compiler.child hip:gfx942` compiles a small kernel of our own, for
`forge.evalpool.cards`: exit 0 if Triton can compile for the target, else 1 and the reason in a
line. Triton accepts any name of an architecture, and the compiler may abort on it.

    judge ── CALL + memory (text, then room for the binary) ─▶ check, compile ── DONE | FAILED ──▶

The answer is a binary's header, the bytes of shared memory where the request needs them alone, or
a failure's message and line. It proves nothing: the judge checks each field and reads the
binary itself. Uses nothing of a GPU.

`check_ttir` holds a parsed module against the closed list: words of the text (`text.py`), then a
walk over the module: names of operations, one public function with the kernel's parameters, library
functions with their true signatures, inline assembly of one instruction. It demands that MLIR
prints the module exactly as the text has it, so a reader of the text reads what is compiled.
"""

from __future__ import annotations

import mmap
import os
import re
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from triton import knobs
from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import IDLE_S, Kind
from forge.evalpool.judge.compiler.binary import Binary, TensorMap, warp_size_of
from forge.evalpool.judge.compiler.text import Refused, check_text, operations, without
from forge.evalpool.judge.program import dialect
from forge.evalpool.judge.program.format import (
    ByValue,
    Described,
    Kernel,
    Options,
    Parameter,
    Pointer,
    parse_type,
)

_TARGET = re.compile(r"(cuda):(\d{2,3}):(\d+)|(hip):(gfx[0-9a-f]{3,4}):(\d+)")
PTX_VERSION = 86
"""For the allocation of shared memory alone: it asks no ptxas."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target with Triton's backend for it."""

    name: str
    """`cuda:90:32`"""
    gpu: GPUTarget
    backend: Any


def open_target(name: str) -> Target:
    """Raises ValueError for a name that is none, and what Triton raises without a backend."""
    found = _TARGET.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no target, such as cuda:90:32 or hip:gfx942:64")
    kind, arch, warp_size = (one for one in found.groups() if one is not None)
    gpu = GPUTarget(kind, int(arch) if kind == "cuda" else arch, int(warp_size))
    return Target(name=name, gpu=gpu, backend=make_backend(gpu))


class CompileFailed(Exception):
    """A stage of the compiler refused the kernel."""


def shared_bytes(module: Any, kernel: Kernel, target: Target) -> int:
    """Bytes of shared memory of a block of a checked module's kernel, which is compiled until they
    are known. Raises as `lower`."""
    allocate: Any = getattr(nvidia.passes.ttgpuir, "add_allocate_shared_memory_nv", None)
    if target.gpu.backend != "cuda" or allocate is None:
        return int(_staged(module, kernel, target, until="llir")[1].get("shared") or 0)
    # The start of Triton's own stage `llir`, without the seconds that LLVM takes for large tiles.
    product, _ = _staged(module, kernel, target, until="ttgir")
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    passes.convert.add_scf_to_cf(manager)
    passes.gluon.add_inliner(manager)
    allocate(manager, target.gpu.arch, PTX_VERSION)
    manager.run(product, "shared memory")
    return int(product.get_int_attr("ttg.shared"))


def _staged(
    module: Any, kernel: Kernel, target: Target, *, until: str
) -> tuple[Any, dict[str, Any]]:
    """Product of the compiler's stages up to one of them, with the facts that they found.

    Options are those of a program, whose format has their bounds, and the backend's own defaults
    for all else: never further arguments of ptxas, files that replace a stage, libraries.
    """
    given = {"debug": False, "sanitize_overflow": False, **asdict(kernel.options)}
    options = target.backend.parse_options(given)
    knobs.compilation.disable_line_info = True
    stages: dict[str, Any] = {}
    target.backend.add_stages(stages, options, Language.TRITON)
    facts: dict[str, Any] = {"target": target.gpu, **vars(options)}
    product = module
    for name, stage in stages.items():
        try:
            product = stage(product, facts)
        except Exception as error:
            raise CompileFailed(f"{name}: {type(error).__name__}: {error}") from error
        if name == until:
            break
    return product, facts


def lower(module: Any, kernel: Kernel, target: Target, *, key: str) -> Binary:
    """Compiles a checked module. TTIR passes run again, whatever the text says it went through.
    Raises CompileFailed where a stage refuses the kernel."""
    code, facts = _staged(module, kernel, target, until="")
    num_registers, stack_bytes = usage_of(code) if target.gpu.backend == "cuda" else (0, 0)
    return Binary(
        key=key,
        target=target.name,
        name=facts["name"],
        code=code,
        shared_bytes=facts.get("shared") or 0,
        num_warps=facts["num_warps"],
        global_scratch_bytes=facts.get("global_scratch_size") or 0,
        tensor_maps=tuple(_tensor_map(one) for one in facts.get("tensordesc_meta") or ()),
        tensor_memory=facts.get("tmem_size") or 0,
        num_registers=num_registers,
        num_spills=stack_bytes // 4,
    )


def _tensor_map(facts: dict[str, Any]) -> TensorMap:
    try:
        return TensorMap(
            swizzle=facts["swizzle"],
            elem_size=facts["elem_size"],
            elem_type=facts["elem_type"],
            block_size=tuple(facts["block_size"]),
            fp4_padded=bool(facts["fp4_padded"]),
        )
    except KeyError as error:
        raise CompileFailed(f"a tensor map of another kind: no {error}") from error


SECTION = struct.Struct("<IIQQQQIIQQ")
REGCOUNT, FRAME_SIZE = 0x2F, 0x11
"""Attributes of a cubin's section `.nv.info`, whose values are (symbol, value) pairs."""


def usage_of(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, the most of all functions. Reads ptxas's own
    output, so nothing is checked."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    sections = [SECTION.unpack_from(cubin, start + at * SECTION.size) for at in range(count)]
    found = {REGCOUNT: 0, FRAME_SIZE: 0}
    for name, _, _, _, at, size, *_ in sections:
        if not cubin.startswith(b".nv.info\0", sections[names][4] + name):
            continue
        end = at + size
        while at + 4 <= end:
            form, attribute, length = struct.unpack_from("<BBH", cubin, at)
            if form == 4 and attribute in found:
                (value,) = struct.unpack_from("<I", cubin, at + 8)
                found[attribute] = max(found[attribute], value)
            at += 4 + (length if form == 4 else 0)
    return found[REGCOUNT], found[FRAME_SIZE]


# --- the closed list


RESERVED = ("llvm", "nvvm", "rocdl", "__nv", "__oc", "__triton", "__cuda", "amdgcn", "_ZN")
"""First letters of symbols that a library or the compiler defines."""


TEXT_NAME = "kernel.ttir"
"""End of the name of a text's file, which MLIR's messages have."""


class ParseFailed(Exception):
    """MLIR does not take the text; its words are on the descriptor of standard error."""


def check_ttir(kernel: Kernel, target: Target, *, is_rewritten: bool = False) -> Any:
    """Returns the module of a kernel, without prints and asserts, to be compiled. Raises Refused,
    and ParseFailed for a text that is no module.

    Args:
        is_rewritten: the judge has made the text, by lines, from one that is checked for itself.
    """
    check_text(kernel.ttir)
    module = parse(kernel.ttir, target)
    check_module(module, name=kernel.name, parameters=kernel.parameters)
    if not is_rewritten and module.str_nodebug().strip() != kernel.ttir.strip():
        raise Refused("", "the text is not as MLIR prints its module")
    stripped = without(kernel.ttir, dialect.STRIPPED)
    return module if stripped is kernel.ttir else parse(stripped, target)


def parse(text: str, target: Target) -> Any:
    """Returns a verified module, with its context. Raises ParseFailed."""
    context = ir.context()
    ir.load_dialects(context)
    target.backend.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=TEXT_NAME) as file:
        file.write(text)
        file.flush()
        try:
            module = ir.parse_mlir_module(file.name, context)
        except RuntimeError as error:
            raise ParseFailed(str(error)) from error
    module.context = context
    return module


def check_module(module: Any, *, name: str, parameters: tuple[Parameter, ...]) -> None:
    """Raises Refused where an operation, function or signature is outside the closed list."""
    found: list[Any] = []
    module.walk(found.append)
    num_modules = num_public = 0
    for operation in found:
        kind = operation.get_name()
        _check(operation, kind)
        num_modules += kind == "builtin.module"
        num_public += kind == "tt.func" and _is_public(operation, name)
    if num_modules != 1 or num_public != 1:
        raise Refused("tt.func", f"{num_public} public functions, not one")
    taken = [str(one) for one in module.get_function_signature(module.get_function(name))]
    if not takes(taken, parameters):
        wanted = ", ".join(one.type for one in parameters)
        raise Refused("tt.func", f"takes ({', '.join(taken)}), the kernel's parameters: {wanted}")


def _check(operation: Any, name: str) -> None:
    if name not in dialect.OPERATIONS:
        raise Refused(name, "is not in the closed list")
    match name:
        case "tt.bitcast":
            kinds = [str(operation.get_operand(0).get_type()), _type(operation)]
            if len({"!tt.ptr" in kind for kind in kinds}) > 1:
                raise Refused(name, " to ".join(kinds))
        case "tt.extern_elementwise":
            _check_extern(operation)
        case "tt.elementwise_inline_asm":
            given = (operation.get_str_attr(one) for one in ("asm_string", "constraints"))
            if reason := dialect.refused_assembly(*given):
                raise Refused(name, reason)
        case "ub.poison":
            if "!tt." in _type(operation):
                raise Refused(name, "a pointer without value")
        case _:
            pass


def _is_public(function: Any, name: str) -> bool:
    """True for the kernel's own function. Raises Refused for another public one, and for what is
    no helper."""
    symbol = function.get_str_attr("sym_name")
    if function.get_num_regions() != 1 or function.get_region(0).empty():
        raise Refused("tt.func", f"{symbol!r} has no body")
    is_public = function.get_str_attr("sym_visibility") != "private"
    if is_public and symbol != name:
        raise Refused("tt.func", f"public {symbol!r}, the kernel's name is {name!r}")
    if not is_public and symbol.startswith(RESERVED):
        raise Refused("tt.func", f"{symbol!r} is a reserved name")
    return is_public


def _type(operation: Any) -> str:
    return str(operation.get_result(0).get_type())


def _check_extern(operation: Any) -> None:
    name = "tt.extern_elementwise"
    symbol = operation.get_str_attr("symbol")
    known = dialect.EXTERN.get(symbol)
    if known is None:
        raise Refused(name, f"function {symbol!r} is not in the closed list")
    library = operation.get_str_attr("libname")
    if operation.get_str_attr("libpath") or library not in ("", "libdevice"):
        raise Refused(name, "names a library")
    operands = (operation.get_operand(i) for i in range(operation.get_num_operands()))
    arguments = ", ".join(_element(one) for one in operands)
    signature = f"{arguments} -> {_element(operation.get_result(0))}"
    if signature not in known:
        raise Refused(name, f"{symbol} as {signature}, it is {' or '.join(sorted(known))}")


def _element(value: Any) -> str:
    """Element type of a value: `f32` of `tensor<128xf32>`."""
    text = str(value.get_type())
    return text.removeprefix("tensor<").removesuffix(">").rsplit("x", 1)[-1]


ELEMENTS = {
    **{"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64"},
    **{f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (1, 8, 16, 32, 64)},
    **{"fp8e4nv": "f8E4M3FN", "fp8e5": "f8E5M2", "fp8e4b8": "f8E4M3FNUZ", "fp8e5b16": "f8E5M2FNUZ"},
    "fp8e4b15": "i8",
}
"""Triton's name of an element type to MLIR's."""


def takes(found: Sequence[str], parameters: Sequence[Parameter]) -> bool:
    """True if a function takes the parameters, one after the other.

    Args:
        found: MLIR types of its arguments, pointers as `*f32`.
    """
    rest = list(found)
    for parameter in parameters:
        forms = _forms(parameter.type)
        form = next((one for one in forms if rest[: len(one)] == one), None)
        if form is None:
            return False
        rest = rest[len(form) :]
    return not rest


def _forms(type: str) -> list[list[str]]:
    """The sequences of MLIR types that one parameter may become; empty for an unknown type.

    A descriptor may be, where the target has no tensor maps, a pointer with shape, strides and
    flags (one flag until Triton 3.6, then two). Shape and strides that follow it in either form
    are parameters of their own.
    """
    match parse_type(type):
        case Pointer(element=element):
            return [[f"*{ELEMENTS[element]}"]]
        case ByValue(type=name):
            return [[ELEMENTS[name]]]
        case Described(element=name, block_shape=shape):
            element = ELEMENTS[name]
            box = "x".join([*map(str, shape), element])
            plain = [f"*{element}", *["i64"] * (2 * len(shape))]
            described = [[f"!tt.tensordesc<{box}>"], [f"!tt.tensordesc<tensor<{box}>>"]]
            return [*described, [*plain, "i1", "i1"], [*plain, "i1"]]
        case None:
            return []


MAX_MESSAGE_CHARACTERS = 2000
_DIAGNOSTIC = re.compile(rf'{re.escape(TEXT_NAME)}"?:(\d+):(\d+)\)?: (?:error: )?(.+)')
_ASSEMBLER = re.compile(r"^ptxas.*?error\s*: (.+)", re.MULTILINE)

WARM_TEXT = """module {
  tt.func public @warm(%arg0: !tt.ptr<f32>) attributes {noinline = false} {
    %0 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %3 = tt.load %2 : tensor<64x!tt.ptr<f32>>
    %4 = arith.addf %3, %3 : tensor<64xf32>
    tt.store %2, %4 : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
"""


def warm_up(target: str) -> None:
    """Compiles a small kernel once in the zygote: tables that each child would otherwise build
    (a quarter of a small kernel's time). Starts no thread that outlives it."""
    kernel = Kernel(
        name="warm",
        ttir=WARM_TEXT,
        options=Options(),
        parameters=(Parameter(name="x", type="*fp32"),),
    )
    opened = open_target(target)
    module = check_ttir(kernel, opened)
    lower(module, kernel, opened, key="0" * 64)


def main(sock: socket.socket) -> None:
    asked = frames.asked(sock, Kind.CALL, takes_fds=True)
    sys.setrecursionlimit(10_000)
    with mmap.mmap(asked.fds[0], asked.body["num_bytes"]) as memory:
        kind, body = answer(asked.body, memory)
    frames.send(sock, kind, body, timeout_s=IDLE_S)


def answer(request: dict[str, Any], memory: mmap.mmap) -> tuple[Kind, dict[str, Any]]:
    """Compiles what the memory holds, and puts the binary behind it."""
    text = memory[: request["text_bytes"]].decode("ascii")
    kernel = Kernel(
        name=request["name"],
        ttir=text,
        options=Options(**request["options"]),
        parameters=tuple(Parameter(name=one[0], type=one[1]) for one in request["parameters"]),
    )
    with _Words() as words:
        try:
            target = open_target(request["target"])
            module = check_ttir(kernel, target, is_rewritten=request["is_rewritten"])
            if request["needs_shared_alone"]:
                return Kind.DONE, {"shared_bytes": shared_bytes(module, kernel, target)}
            binary = lower(module, kernel, target, key=request["key"])
        except Exception as error:
            return Kind.FAILED, _failure(error, text, words.read())
    room = slice(request["code_at"], request["code_at"] + len(binary.code))
    memory[room] = binary.code
    return Kind.DONE, {"header": binary.header(), "code_bytes": len(binary.code)}


def _failure(error: Exception, text: str, words: str) -> dict[str, Any]:
    """Names the failure in MLIR's words, at the line of the text where that is known."""
    if isinstance(error, Refused):
        lines = (number for number, name in operations(text) if name == error.operation)
        line, message = error.text_line or next(lines, 0), str(error)
    else:
        found = _DIAGNOSTIC.search(words)
        assembler = _ASSEMBLER.findall(str(error))
        message, line = "; ".join(dict.fromkeys(assembler)) or str(error), 0
        if found:
            is_late = isinstance(error, CompileFailed)
            message = f"{found[3]} ({message})" if is_late else found[3]
            line = int(found[1])
    return {"message": message[:MAX_MESSAGE_CHARACTERS], "text_line": line}


class _Words:
    """Standard error as a file: MLIR, LLVM and ptxas write their messages there."""

    def __enter__(self) -> _Words:
        self._saved = os.dup(2)
        self._file = open("words.txt", "w+b")  # in the scratch folder that a child stands in
        os.dup2(self._file.fileno(), 2)
        return self

    def read(self) -> str:
        self._file.seek(0)
        return self._file.read(1 << 16).decode(errors="replace")

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.close()


def fault(name: str) -> str:
    """The reason why Triton cannot compile for a target; empty if it can."""
    try:
        warm_up(f"{name}:{warp_size_of(name)}")
    except Exception as error:
        return str(error).split("\n")[0]
    return ""


if __name__ == "__main__":
    found = fault(sys.argv[1])
    sys.stdout.write(f"{found}\n")
    sys.exit(bool(found))
