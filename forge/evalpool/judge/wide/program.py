"""A captured program in float64: the same launches and operations, with wider floats.

`widened` replaces the float types of `kinds` by float64 in all records of a program: tensors, sizes
of storages, constants, types of parameters, dtypes that the host names, and the text of kernels.
Other types stay as they are, so a cast to half precision in a float32 problem keeps what it loses.
The judge calls it; what has no form in float64 raises `Narrow`.

Texts are rewritten line by line, as MLIR prints one operation a line: the evaluator parses the
result, and Triton's compiler takes it. An offset or a stride counts elements and stays.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.dialect import EXTERN
from forge.evalpool.judge.program.ops import packet
from forge.evalpool.judge.program.walk import places
from forge.evalpool.judge.ttir.parse import MALFORMED
from forge.evalpool.judge.ttir.tree import Scalar
from forge.evalpool.judge.ttir.values import decode, memory_dtype, round_to

WIDE = "float64"
MLIR = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""MLIR's names of the types that can be widened."""
TRITON = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""Their names in signatures of kernels."""


class _NoWideForm(Exception):
    """A line of a text has no wide form; `place` is the number of its operation."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words, self.place = words, -1


class Narrow(Exception):
    """The program has no form in float64. The message says what hinders it, and where.

    `line`: of the candidate's source; 0 where unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"{message}, line {line}" if line else message)
        self.line = line


def widened(
    program: form.Program,
    kinds: frozenset[str],
    *,
    inputs: Sequence[str] = (),
    parameters: Mapping[str, str] | None = None,
) -> form.Program:
    """The program in float64.

    Args:
        kinds: torch's names of the float types that become float64.
        inputs: types of the tensor inputs: a program may see nothing but the bits of one.
        parameters: types of the parameters and buffers, by name.

    Raises:
        Narrow: bits of floats are read, or a type or an operation has no wide form.
    """
    kinds = kinds & MLIR.keys()
    if not kinds:
        return program
    dtypes = _dtypes(program, kinds, inputs, parameters or {})
    storages, constants = _storages(program, kinds, dtypes)
    kernels = tuple(_kernel(one, kinds) for one in program.kernels)
    _check_launches(program, kinds)
    return replace(
        program,
        storages=storages,
        constants=constants,
        tensors=tuple(
            replace(one, dtype=WIDE) if one.dtype in kinds else one for one in program.tensors
        ),
        kernels=kernels,
        init=tuple(_node(one, kinds, program.tensors) for one in program.init),
        forward=tuple(_node(one, kinds, program.tensors) for one in program.forward),
    )


def at_one_stage(program: form.Program) -> form.Program:
    """The program with loops of one stage: several need as many times the shared memory, and a
    float64 twice that of a float32. Configurations that differ in nothing else are one kernel."""

    def one(kernel: form.Kernel) -> form.Kernel:
        text = STAGES.sub(r"\g<1>1", kernel.ttir)
        return replace(kernel, ttir=text, options=replace(kernel.options, num_stages=1))

    return replace(program, kernels=tuple(one(kernel) for kernel in program.kernels))


STAGES = re.compile(r"(\btt\.num_stages = )\d+")

# --- memory and the host


def _dtypes(
    program: form.Program,
    kinds: frozenset[str],
    inputs: Sequence[str],
    parameters: Mapping[str, str],
) -> Mapping[int, str]:
    """Type of each storage. Raises Narrow for one that is seen as floats of several sizes, or as
    their bits."""
    found: dict[int, str] = {}
    for number, one in enumerate(program.storages):
        if one.origin is form.Origin.INPUT and one.index < len(inputs):
            found[number] = inputs[one.index]
        elif one.origin is form.Origin.PARAMETER and one.name in parameters:
            found[number] = parameters[one.name]
    for one in program.tensors:
        other = found.setdefault(one.storage, one.dtype)
        if other != one.dtype and (other in kinds or one.dtype in kinds):
            raise Narrow(f"memory seen as {other} and as {one.dtype}")
    return found


def _storages(
    program: form.Program, kinds: frozenset[str], dtypes: Mapping[int, str]
) -> tuple[tuple[form.Storage, ...], tuple[bytes, ...]]:
    storages, constants = list(program.storages), list(program.constants)
    for number, one in enumerate(program.storages):
        dtype = dtypes.get(number)
        if dtype not in kinds:
            continue
        size = form.ITEM_BYTES[WIDE] // form.ITEM_BYTES[dtype]
        storages[number] = replace(one, num_bytes=one.num_bytes * size)
        if one.origin is form.Origin.CONSTANT:
            kind, data = Scalar(MLIR[dtype]), program.constants[one.index]
            whole = data[: len(data) // kind.num_bytes * kind.num_bytes]
            values = decode(np.frombuffer(whole, memory_dtype(kind)), kind)
            constants[one.index] = values.astype(np.float64).tobytes()
    return tuple(storages), tuple(constants)


def _check_launches(program: form.Program, kinds: frozenset[str]) -> None:
    """Raises Narrow where a kernel sees a tensor's elements as another type."""
    wide_elements = {TRITON[one] for one in kinds}
    for placed in places(program):
        node = placed.node
        if not isinstance(node, form.Launch):
            continue
        kernel = program.kernels[node.kernel]
        for argument, parameter in zip(node.arguments, kernel.parameters, strict=True):
            if not isinstance(argument, (form.TensorUse, form.Descriptor)):
                continue
            kind = form.parse_type(parameter.type)
            element = kind.element if isinstance(kind, _ADDRESSES) else ""
            dtype = program.tensors[argument.tensor].dtype
            if (element in wide_elements) != (dtype in kinds):
                words = f"kernel {kernel.name} sees {dtype} as {parameter.type}"
                raise Narrow(words, node.line)


_ADDRESSES = (form.Pointer, form.Described)


LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
}
"""Largest number of each type: what infinities are in `nan_to_num`, in the wide reference too."""


def _node(node: form.Node, kinds: frozenset[str], tensors: tuple[form.Tensor, ...]) -> form.Node:
    if isinstance(node, form.Op):
        arguments = node.arguments
        if packet(node.name) == "nan_to_num" and isinstance(first := arguments[0], form.TensorUse):
            end = LARGEST.get(tensors[first.tensor].dtype)
            given = zip_longest(arguments[1:], (None, end, None if end is None else -end))
            arguments = (first, *(own if one is None else one for one, own in given))
        return replace(
            node,
            arguments=tuple(_literal(one, kinds) for one in arguments),
            keywords={name: _literal(one, kinds) for name, one in node.keywords.items()},
        )
    if isinstance(node, form.Choice):
        alternatives = (
            replace(one, nodes=tuple(_node(inner, kinds, tensors) for inner in one.nodes))
            for one in node.alternatives
        )
        return replace(node, alternatives=tuple(alternatives))
    return node


def _literal(value: form.Literal, kinds: frozenset[str]) -> form.Literal:
    if isinstance(value, tuple):
        return tuple(_literal(one, kinds) for one in value)
    if isinstance(value, form.NamedConstant) and value.kind == "dtype" and value.name in kinds:
        return replace(value, name=WIDE)
    return value


# --- kernels


def _kernel(kernel: form.Kernel, kinds: frozenset[str]) -> form.Kernel:
    elements = frozenset(MLIR[one] for one in kinds)
    try:
        text, added = _wide_text(kernel.ttir, elements, kernel.floats)
    except _NoWideForm as error:
        line = kernel.lines[error.place] if 0 <= error.place < len(kernel.lines) else 0
        raise Narrow(f"{error.words} in kernel {kernel.name}", line) from None
    except MALFORMED as error:  # whatever a candidate calls TTIR
        raise Narrow(f"malformed TTIR in kernel {kernel.name} ({type(error).__name__})") from error
    names = "|".join(TRITON[one] for one in kinds)
    parameters = tuple(
        replace(one, type=re.sub(rf"\b({names})\b|(?<=\*k)({names})\b", "fp64", one.type))
        for one in kernel.parameters
    )
    lines = list(kernel.lines)
    for place in added:
        lines[place:place] = lines[place : place + 1]
    return replace(kernel, ttir=text, parameters=parameters, lines=tuple(lines))


OPENING = re.compile(r"^ *[^\s#^}/]", re.MULTILINE)
"""Begin of a line in which an operation begins."""


TYPE = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|[%@^#][\w$.\-]+|(?:(?<=\dx)|(?<![\w.$\-]))(f32|f16|bf16)(?![\w.$\-])'
)
"""A float type; names and strings match too, so that nothing in them is one."""
SPECIAL = re.compile(
    r"^.*(?:inline_asm|dot_scaled|bitcast|arith\.extf |arith\.truncf |"
    r"arith\.convertf |tt\.fp_to_fp |tt\.dot |tt\.clampf |extern_elementwise|_divf |precise_sqrt |"
    r"arith\.constant .*f(?:16|32)\b).*$",
    re.MULTILINE,
)
"""Lines in which more than types changes."""
OPERATION = re.compile(r'\s*(?:%[^=\n]* = )?"?([\w.]+)"?')
CONVERSION = re.compile(r" : (\S+) (?:to|->) (\S+)$")
OPERAND = re.compile(r"%[\w#$.\-]+")
DOT = re.compile(r" : (\S+) \* (\S+) -> (\S+)$")
SYMBOL = re.compile(r'symbol = "(?:__nv_)?(\w+)"')
EXTERN_TYPES = re.compile(r" : \((.*)\) -> (\S+)$")
NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d+\.\d+(?:[eE][+-]?\d+)?")
SUMS = ("arith.addf ", "arith.subf ")
PLAIN = {
    "tt.precise_divf": "arith.divf",
    "tt.approx_divf": "arith.divf",
    "tt.precise_sqrt": "math.sqrt",
}
"""Forms of operations that exist for float32 alone, and those for all floats."""


@lru_cache(maxsize=64)
def _wide_text(
    text: str, elements: frozenset[str], floats: tuple[float, ...]
) -> tuple[str, tuple[int, ...]]:
    """The text in float64, and the place of each operation that is added; it belongs to the source
    line of the one that stands there before. Raises _NoWideForm."""
    before = list[int]()
    numbers = {_rounded(one, kind): one for kind in elements for one in floats}
    in_sums = _in_sums(text) if WHOLE_NUMBER.search(text) else frozenset[str]()

    def special(found: re.Match[str]) -> str:
        try:
            if " = arith.constant " in found[0]:
                return _constant(found[0], elements, numbers, in_sums)
            lines = _special(found[0], elements)
        except _NoWideForm as error:
            error.place = len(OPENING.findall(text, 0, found.start()))
            raise
        before.extend([found.start()] * (len(lines) - 1))
        return "\n".join(lines)

    def kind(found: re.Match[str]) -> str:
        return "f64" if found[1] in elements else found[0]

    wide = TYPE.sub(kind, SPECIAL.sub(special, text)).replace(SINGLE, "f32")
    openings = [one.end() for one in OPENING.finditer(text)] if before else []
    return wide, tuple(bisect_right(openings, one) for one in reversed(before))


def _special(line: str, elements: frozenset[str]) -> list[str]:
    """A line of `SPECIAL` with what changes besides types, behind lines that it needs."""
    found = OPERATION.match(line)
    name = found[1] if found else ""
    is_float = any(one[1] in elements for one in TYPE.finditer(line))
    if not is_float:
        return [line]
    match name:
        case "arith.extf" | "arith.truncf" | "arith.convertf" | "tt.fp_to_fp":
            return _conversion(line, elements)
        case "tt.bitcast" | "arith.bitcast":
            types = CONVERSION.search(line)
            if types is None or types[1] != types[2]:
                raise _NoWideForm("bits of a float")
        case "tt.dot_scaled" | "tt.elementwise_inline_asm":
            raise _NoWideForm(name)
        case "tt.clampf":
            return _clamp(line)
        case "tt.dot":
            return _dot(line, elements)
        case "tt.extern_elementwise":
            return [_extern(line, elements)]
        case _ if name in PLAIN:
            return [line.replace(name, PLAIN[name], 1)]
        case _:
            pass
    return [line]


def _element(kind: str) -> str:
    """Element of a printed type: `f32` of `f32`, `tensor<64xf32>` and `tensor<64x!tt.ptr<f32>>`."""
    return kind.rstrip(">").rpartition("<")[2].rpartition("x")[2]


def _conversion(line: str, elements: frozenset[str]) -> list[str]:
    """A conversion between floats: none where both become float64; by way of float32 to and from 8
    bits, as torch converts a float64 and Triton has no other."""
    types = CONVERSION.search(line)
    assert types is not None
    name, _, rest = line.partition(" = ")
    value, indent = _operands(rest)[0], name[: name.index("%")]
    source, target = (_element(one) for one in types.groups())
    if {source, target} <= elements | {"f64"}:
        return [f"{name} = arith.bitcast {value} : {types[2]} to {types[2]}"]
    single = f"%wide_{name.strip()[1:]}"
    if target.startswith("f8"):
        kind = _with_element(types[1], SINGLE)
        rest = rest.replace(value, single, 1).replace(types[1], kind, 1)
        return [
            f"{indent}{single} = arith.truncf {value} : {types[1]} to {kind}",
            f"{name} = {rest}",
        ]
    if source.startswith("f8"):
        kind = _with_element(types[2], SINGLE)
        rest = rest[: -len(types[2])] + kind
        return [
            f"{indent}{single} = {rest}",
            f"{name} = arith.extf {single} : {kind} to {types[2]}",
        ]
    return [line]


SINGLE = "f\0" + "32"
"""A float32 that stays one."""


def _with_element(kind: str, element: str) -> str:
    """A printed type of numbers with another element."""
    return f"{kind.rpartition('x')[0]}x{element}>" if ">" in kind else element


def _clamp(line: str) -> list[str]:
    """A clamp as a maximum and a minimum: Triton's own fails for a float64 between -c and c."""
    name, _, rest = line.partition(" = tt.clampf ")
    value, low, high = _operands(rest)
    kind = rest.rpartition(" : ")[2]
    end = "imumf" if "propagateNan = all" in rest else "numf"
    indent, inner = name[: name.index("%")], f"%wide_{name.strip()[1:]}"
    return [
        f"{indent}{inner} = arith.max{end} {value}, {low} : {kind}",
        f"{name} = arith.min{end} {inner}, {high} : {kind}",
    ]


def _operands(text: str) -> list[str]:
    return OPERAND.findall(text)


def _dot(line: str, elements: frozenset[str]) -> list[str]:
    """A product in float64; operands of other types are extended."""
    types = DOT.search(line)
    assert types is not None
    kinds = list(types.groups())
    is_wide = [_element(one) in elements | {"f64"} for one in kinds]
    if not is_wide[2]:
        if any(is_wide):
            raise _NoWideForm("a product of floats that is no float64")
        return [line]
    indent, head, rest = re.split(r"(%\S+ = tt\.dot )", line, maxsplit=1)
    lines = list[str]()
    values = _operands(rest)[:3]
    for place in (0, 1):
        if not is_wide[place]:
            if "f8" in kinds[place]:
                raise _NoWideForm("a product of 8-bit floats")
            wide = f"%wide{place}_{head[1:].partition(' ')[0]}"
            target = _with_element(kinds[place], "f64")
            lines.append(
                f"{indent}{wide} = arith.extf {values[place]} : {kinds[place]} to {target}"
            )
            values[place], kinds[place] = wide, target
    lines.append(f"{indent}{head}{', '.join(values)} : {kinds[0]} * {kinds[1]} -> {kinds[2]}")
    return lines


def _extern(line: str, elements: frozenset[str]) -> str:
    """A call of the library's function for float64."""
    symbol, types = SYMBOL.search(line), EXTERN_TYPES.search(line)
    assert symbol is not None
    assert types is not None
    kinds = [*types[1].split(", "), types[2]]
    wide = ["f64" if (one := _element(kind)) in elements else one for kind in kinds]
    if "double2float" in symbol[1]:
        head, value = line.partition(" = ")[0], _operands(line)[1]
        return f"{head} = arith.bitcast {value} : {types[1]} to {types[1]}"
    wanted = f"{', '.join(wide[:-1])} -> {wide[-1]}"
    for name in _wide_names(symbol[1]):
        if wanted in EXTERN.get(name, ()):
            return line[: symbol.start()] + f'symbol = "{name}"' + line[symbol.end() :]
    raise _NoWideForm(f"{symbol[1]}, which has no form for float64,")


ALIASES = {
    "isinff": "isinfd",
    "isnanf": "isnand",
    "signbitf": "signbitd",
    "finitef": "isfinited",
    "fast_fdividef": "ddiv_rn",
    "frsqrt_rn": "rsqrt",
}
"""Functions of libdevice for float32 whose names for float64 follow no rule."""


def _wide_names(symbol: str) -> Iterator[str]:
    if symbol.startswith("__"):  # AMD
        base = symbol.removeprefix("__triton_hip_fast_").removesuffix("f")
        yield symbol
        yield symbol.removesuffix("_f32") + "_f64"
        yield f"__ocml_{base}_f64"
        return
    name = symbol.removeprefix("fast_")
    yield f"__nv_{ALIASES.get(symbol, name)}"
    yield f"__nv_{name.removesuffix('f')}"
    yield f"__nv_d{name.removeprefix('f')}"
    yield f"__nv_{name.replace('maf_', 'ma_')}"
    yield f"__nv_{name.replace('float', 'double')}"
    yield f"__nv_{re.sub('2float_r[nzud]', '2double_rn', name)}"


WHOLE = {2.0**23: 2.0**52, 1.5 * 2.0**23: 1.5 * 2.0**52}
"""Numbers beside which a float32 has no fraction, so that adding and subtracting one rounds to
whole numbers, and those that do so for a float64."""


WHOLE_NUMBER = re.compile(r"0x[4C]B[04]00000|8\.388608|1\.2582912")
"""Their texts, at least."""


def _in_sums(text: str) -> frozenset[str]:
    """Constants of a text that are operands of sums and differences of floats alone."""
    rows = [line.partition(" = ") for line in text.split("\n")]
    names = {head.strip() for head, _, rest in rows if rest.startswith("arith.constant ")}
    others = (rest or head for head, _, rest in rows if not rest.startswith(SUMS))
    return frozenset(names.difference(*map(_operands, others)))


def _constant(
    line: str, elements: frozenset[str], numbers: Mapping[float, float], in_sums: frozenset[str]
) -> str:
    """A constant as the source has it, or else the same number in float64."""
    head, colon, type = line.rpartition(" : ")
    kind = _element(type)
    if kind not in elements:
        return line
    name, mark, literal = head.partition(" = arith.constant ")

    def exact(found: re.Match[str]) -> str:
        value = _of_bits(found[0], kind) if "x" in found[0] else _rounded(float(found[0]), kind)
        wide = numbers.get(abs(value), math.nan)
        if kind == "f32" and name.strip() in in_sums and abs(value) in WHOLE:
            wide = WHOLE[abs(value)]
        if math.isfinite(wide):
            return f"{math.copysign(wide, value):.16e}"
        return f"0x{np.float64(value).view(np.uint64):016X}" if "x" in found[0] else found[0]

    return name + mark + NUMBER.sub(exact, literal) + colon + type


def _of_bits(text: str, kind: str) -> float:
    element = Scalar(kind)
    raw = np.array([int(text, 16) % (1 << element.bits)], f"u{element.num_bytes}").view(
        memory_dtype(element)
    )
    return float(decode(raw, element)[0])


def _rounded(value: float, kind: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value) if kind == "f32" else round_to(np.array([value]), kind)[0])
