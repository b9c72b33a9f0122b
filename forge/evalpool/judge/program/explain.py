"""Text about a program for people: names of nodes in messages, and all of it for `--explain`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import (
    Choice,
    Descriptor,
    Kernel,
    Launch,
    Literal,
    NamedConstant,
    Node,
    Op,
    Origin,
    Program,
    Section,
    Storage,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.walk import Placed, places

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_TYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
}
INDENT = "  "


# --- names of nodes


def node_names(program: Program) -> dict[str, str]:
    """Names of all nodes by their paths.

    Launches, operations and so on are counted within their section, in a choice within the
    alternative: `launch 2 of 3: softmax_kernel, line 31`; `init: op 1 of 1: aten.cat, line 12`.
    """
    found = list(places(program))
    totals = Counter(_count_key(placed) for placed in found)
    seen: Counter[tuple[str, str]] = Counter()
    names: dict[str, str] = {}
    for placed in found:
        key = _count_key(placed)
        seen[key] += 1
        before = "init: " if placed.section == Section.INIT else ""
        count = f"{kind(placed.node)} {seen[key]} of {totals[key]}"
        name = f"{subject(program, placed.node)}{at_line(placed.node)}"
        names[placed.path] = f"{before}{count}: {name}"
    return names


def _count_key(placed: Placed) -> tuple[str, str]:
    """The list that a node stands in, and its kind: nodes are counted by both."""
    return placed.path.rpartition("[")[0], kind(placed.node)


def kind(node: Node) -> str:
    """`launch`, `op`, `value` or `choice`."""
    return type(node).__name__.lower()


def subject(program: Program, node: Node) -> str:
    """Kernel or operation of a node."""
    match node:
        case Launch():
            return program.kernels[node.kernel].name
        case Op():
            return short_operation(node.name)
        case Value():
            return tensor_name(program, node.tensor)
        case Choice():
            return f"{len(node.alternatives)} configurations"


def at_line(node: Node) -> str:
    """`, line 31`; empty where the line is unknown."""
    return f", line {node.line}" if node.line else ""


def short_operation(name: str) -> str:
    """`aten.mm` for `aten.mm.default`; other overloads stay."""
    return name.removesuffix(".default")


# --- names of tensors


def tensor_name(program: Program, tensor: int) -> str:
    """A tensor by its storage, with type and shape: `input 0 f32[128, 64]`.

    A view that is not its storage from the start in order says its offset and strides.
    """
    view = program.tensors[tensor]
    dtype = SHORT_TYPES.get(view.dtype, view.dtype)
    text = f"{storage_name(program, view.storage)} {dtype}{list(view.shape)}"
    if view.offset:
        text += f" from {view.offset}"
    if view.strides != dense_strides(view.shape):
        text += f" strides {list(view.strides)}"
    return text


def storage_name(program: Program, storage: int) -> str:
    """`input 0`, `parameter fc.weight`, `constant 2`; `buffer 7` for an allocation."""
    held: Storage = program.storages[storage]
    match held.origin:
        case Origin.INPUT | Origin.CONSTANT:
            return f"{held.origin.value} {held.index}"
        case Origin.PARAMETER:
            return f"parameter {held.name}"
        case Origin.ALLOCATION:
            return f"buffer {storage}"


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


# --- the whole program


def explain(program: Program) -> str:
    """The program as text: kernels, then the nodes of both sections, then outputs."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    yield f"program for {program.target}, {summary(program)}"
    if program.stateful:
        yield f"stateful: {program.stateful}"
    for at, kernel in enumerate(program.kernels):
        yield f"kernel {at}: {kernel_line(kernel)}"
    for section in Section:
        found = [placed for placed in places(program) if placed.section == section]
        choices = {p.path: p.node for p in found if isinstance(p.node, Choice)}
        if found:
            yield f"{section.value}:"
        for placed in found:
            yield from _node_lines(program, placed, choices)
    outputs = ", ".join(tensor_name(program, output) for output in program.outputs)
    yield f"returns {program.returned}: {outputs or 'nothing'}"


def summary(program: Program) -> str:
    """Counts of nodes: `2 launches, 1 op`."""
    counts = Counter(kind(placed.node) for placed in places(program))
    plurals = {"launch": "launches", "op": "ops", "value": "values", "choice": "choices"}
    said = [f"{n} {name if n == 1 else plurals[name]}" for name, n in counts.items()]
    return ", ".join(said) or "no nodes"


def kernel_line(kernel: Kernel) -> str:
    """Name, parameters, and options that differ in practice."""
    parameters = ", ".join(f"{p.name}: {p.type}" for p in kernel.parameters)
    options = f"{kernel.options.num_warps} warps, {kernel.options.num_stages} stages"
    return f"{kernel.name}({parameters}), {options}, {len(kernel.ttir)} bytes of TTIR"


def _node_lines(program: Program, placed: Placed, choices: dict[str, Choice]) -> Iterator[str]:
    node = placed.node
    choice_path, _, rest = placed.path.partition(".alternatives[")
    depth = 3 if rest else 1
    if placed.path.endswith(".nodes[0]"):
        number = int(rest.partition("]")[0])
        yield INDENT * 2 + alternative_line(choices[choice_path], number)
    where = f"[line {node.line}] " if node.line else ""
    yield INDENT * depth + where + node_line(program, node)


def alternative_line(choice: Choice, number: int) -> str:
    """Number and label of an alternative; says if it was chosen."""
    mark = " (chosen)" if choice.chosen == number else ""
    return f"{number}: {choice.alternatives[number].label}{mark}"


def node_line(program: Program, node: Node) -> str:
    """One node in one line."""
    match node:
        case Launch():
            arguments = ", ".join(_launch_arguments(program, node))
            return f"launch {program.kernels[node.kernel].name}{list(node.grid)}({arguments})"
        case Op():
            arguments = ", ".join(_operation_arguments(program, node))
            results = ", ".join(tensor_name(program, result) for result in node.results)
            return f"op {short_operation(node.name)}({arguments}) -> {results or 'nothing'}"
        case Value():
            return f"value of {tensor_name(program, node.tensor)}: {node.answer}"
        case Choice():
            return f"choice of {len(node.alternatives)} configurations"


def _launch_arguments(program: Program, launch: Launch) -> Iterator[str]:
    parameters = program.kernels[launch.kernel].parameters
    for parameter, argument in zip(parameters, launch.arguments, strict=True):
        match argument:
            case TensorUse():
                text = tensor_name(program, argument.tensor)
            case Descriptor():
                block = list(argument.block_shape)
                text = f"descriptor of {tensor_name(program, argument.tensor)} in blocks {block}"
            case _:
                text = str(argument)
        yield f"{parameter.name}={text}"


def _operation_arguments(program: Program, op: Op) -> Iterator[str]:
    yield from (literal_text(program, literal) for literal in op.arguments)
    for name, literal in op.keywords.items():
        yield f"{name}={literal_text(program, literal)}"


def literal_text(program: Program, literal: Literal) -> str:
    """An argument of an operation as text."""
    match literal:
        case TensorUse():
            return tensor_name(program, literal.tensor)
        case NamedConstant():
            return literal.name
        case tuple():
            return f"[{', '.join(literal_text(program, inner) for inner in literal)}]"
        case _:
            return str(literal)
