"""Nodes of a program with their places, its straight-line programs, and the bytes of its tensors.

Bytes count each argument and result by its elements, also where a stride of 0 repeats them. The
executor checks that results have the shapes that the program says.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from forge.evalpool.judge.program import format as form


@dataclass(frozen=True, slots=True)
class Placed:
    node: form.Node
    section: form.Section
    path: str
    """For messages: `forward[3]`, `forward[3].alternatives[0].nodes[1]`."""


def places(program: form.Program) -> Iterator[Placed]:
    """Each node in order of the program; after a choice the nodes of all its alternatives."""
    for section, nodes in (
        (form.Section.INIT, program.init),
        (form.Section.FORWARD, program.forward),
    ):
        yield from _places(nodes, section, section.value)


def _places(nodes: Iterable[form.Node], section: form.Section, before: str) -> Iterator[Placed]:
    for at, node in enumerate(nodes):
        path = f"{before}[{at}]"
        yield Placed(node, section, path)
        if isinstance(node, form.Choice):
            for number, alternative in enumerate(node.alternatives):
                inner = f"{path}.alternatives[{number}].nodes"
                yield from _places(alternative.nodes, section, inner)


def variants(program: form.Program) -> Iterator[list[Placed]]:
    """Straight-line lists of nodes, so that each alternative that may run stands in one of them.

    A choice with a winner has that alternative alone. Of several open choices the k-th list takes
    the k-th alternative of each, or its last: combinations are not tried.
    """
    all_places = [placed for placed in places(program) if ".alternatives[" not in placed.path]
    widths = [len(open_alternatives(placed.node)) for placed in all_places]
    for number in range(max(widths, default=1)):
        yield [chosen for placed in all_places for chosen in _choose(placed, number)]


def open_alternatives(node: form.Node) -> range:
    """Positions of the alternatives that may run; one position for a node that is no choice."""
    if not isinstance(node, form.Choice):
        return range(1)
    if node.chosen is not None:
        return range(node.chosen, node.chosen + 1)
    return range(len(node.alternatives))


def winners(program: form.Program, *, turn: int, shift: int) -> dict[str, str]:
    """Labels of the alternatives that run in a turn, by the key of their choice."""
    found: dict[str, str] = {}
    for nodes in (program.init, program.forward):
        open_ = [node for node in nodes if isinstance(node, form.Choice) and node.chosen is None]
        open_ = [node for node in open_ if len(node.alternatives) > 1]
        for number, node in enumerate(open_):
            chosen = alternative(len(node.alternatives), turn, number * shift)
            found[node.key] = node.alternatives[chosen].label
    return found


def alternative(num: int, turn: int, shift: int) -> int:
    """The alternative of `num` that runs in a turn: the first, then each of the others."""
    return 0 if turn == 0 or num == 1 else 1 + (turn - 1 + shift) % (num - 1)


def _choose(placed: Placed, number: int) -> Iterator[Placed]:
    if not isinstance(placed.node, form.Choice):
        yield placed
        return
    open_ = open_alternatives(placed.node)
    taken = open_[min(number, len(open_) - 1)]
    inner = f"{placed.path}.alternatives[{taken}].nodes"
    yield from _places(placed.node.alternatives[taken].nodes, placed.section, inner)


def tensors_in(literal: form.Literal) -> Iterator[int]:
    """Positions of the tensors in an argument of an operation."""
    if isinstance(literal, form.TensorUse):
        yield literal.tensor
    elif isinstance(literal, tuple):
        for inner in literal:
            yield from tensors_in(inner)


def tensors_of(node: form.Node) -> Iterator[int]:
    """Positions of all tensors that a node names; those of a choice: `restored`."""
    match node:
        case form.Launch():
            for argument in node.arguments:
                if isinstance(argument, form.TensorUse | form.Descriptor):
                    yield argument.tensor
        case form.Op():
            for literal in (*node.arguments, *node.keywords.values()):
                yield from tensors_in(literal)
            yield from node.results
        case form.Choice():
            for alternative in node.alternatives:
                yield from alternative.restored
        case _:
            yield node.tensor


def used_tensors(node: form.Node) -> Iterator[int]:
    """The same, and those of the nodes of a choice's alternatives."""
    yield from tensors_of(node)
    alternatives = node.alternatives if isinstance(node, form.Choice) else ()
    for inner in (inner for one in alternatives for inner in one.nodes):
        yield from used_tensors(inner)


def renumbered(
    node: form.Node,
    tensor: Callable[[int], Any],
    kernel: Callable[[int], int],
    literal: Callable[[Any], Any] = lambda value: value,
) -> form.Node:
    """A node with other numbers, or descriptions in place of them, and literals."""

    def other(value: Any) -> Any:
        match value:
            case form.TensorUse():
                return form.TensorUse(tensor=tensor(value.tensor))
            case form.Descriptor():
                return replace(value, tensor=tensor(value.tensor))
            case tuple():
                return tuple(map(other, cast("tuple[Any, ...]", value)))
            case _:
                return literal(value)

    match node:
        case form.Launch():
            arguments = tuple(map(other, node.arguments))
            return replace(node, kernel=kernel(node.kernel), arguments=arguments)
        case form.Op():
            return replace(
                node,
                arguments=tuple(map(other, node.arguments)),
                keywords={name: other(one) for name, one in node.keywords.items()},
                results=tuple(map(tensor, node.results)),
            )
        case form.Value():
            return replace(node, tensor=tensor(node.tensor), answer=literal(node.answer))
        case form.Choice():
            alternatives = (
                replace(
                    one,
                    nodes=tuple(renumbered(each, tensor, kernel, literal) for each in one.nodes),
                    restored=tuple(map(tensor, one.restored)),
                )
                for one in node.alternatives
            )
            return replace(node, alternatives=tuple(alternatives))


def returned_inputs(program: form.Program) -> frozenset[int]:
    """Positions of the inputs in whose memory outputs lie: an answer in place."""
    held = (program.storages[program.tensors[output].storage] for output in program.outputs)
    return frozenset(one.index for one in held if one.origin is form.Origin.INPUT)


def op_bytes(program: form.Program, node: form.Op | form.Launch) -> int:
    """Bytes of the distinct tensors that an operation or a launch names."""
    return sum(tensor_bytes(program.tensors[tensor]) for tensor in set(tensors_of(node)))


def tensor_bytes(tensor: form.Tensor) -> int:
    return math.prod(tensor.shape) * form.ITEM_BYTES[tensor.dtype]


def is_as_it_lies(tensor: form.Tensor) -> bool:
    """True if the elements of a tensor are one behind the other in memory, in its order."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def is_repeating(tensor: form.Tensor) -> bool:
    """True if several elements of a tensor are one in memory, or may be: no order of its axes has
    each step behind the whole of the one below."""
    end = 0
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size != 1:
            if stride <= end:
                return True
            end += stride * (size - 1)
    return False


def is_permuted(tensor: form.Tensor) -> bool:
    """True if an axis has a longer step than one before it."""
    pairs = zip(tensor.strides, tensor.shape, strict=True)
    steps = [stride for stride, size in pairs if size != 1]
    return any(later > earlier for earlier, later in itertools.pairwise(steps))


# --- text about a program for people: names of nodes in messages, and all of it for `--explain`


SHORT_TYPES = {
    **{"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"},
    **{"int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8"},
}
INDENT = "  "


# --- names of nodes


def node_names(program: form.Program) -> dict[str, str]:
    """Names of all nodes by their paths.

    Launches, operations and so on are counted within their section, in a choice within the
    alternative: `launch 2 of 3: softmax_kernel, line 31`; `init: op 1 of 1: aten.cat, line 12`.
    """
    found = [(one, (one.path.rpartition("[")[0], _kind(one.node))) for one in places(program)]
    totals, seen = Counter(key for _, key in found), Counter[tuple[str, str]]()
    names: dict[str, str] = {}
    for placed, key in found:
        seen[key] += 1
        before = "init: " if placed.section == form.Section.INIT else ""
        line = f", line {placed.node.line}" if placed.node.line else ""
        count = f"{key[1]} {seen[key]} of {totals[key]}"
        names[placed.path] = f"{before}{count}: {_subject(program, placed.node)}{line}"
    return names


def _kind(node: form.Node) -> str:
    return type(node).__name__.lower()


def _subject(program: form.Program, node: form.Node) -> str:
    match node:
        case form.Launch():
            return program.kernels[node.kernel].name
        case form.Op():
            return short_operation(node.name)
        case form.Value():
            return tensor_name(program, node.tensor)
        case form.Choice():
            return f"{len(node.alternatives)} configurations"


def short_operation(name: str) -> str:
    """`aten.mm` for `aten.mm.default`; other overloads stay."""
    return name.removesuffix(".default")


# --- names of tensors


def tensor_name(program: form.Program, tensor: int) -> str:
    """A tensor by its storage, with type and shape: `input 0 f32[128, 64]`; offset and strides,
    too, of a view that is not its storage from the start in order."""
    view = program.tensors[tensor]
    dtype = SHORT_TYPES.get(view.dtype, view.dtype)
    text = f"{storage_name(program, view.storage)} {dtype}{list(view.shape)}"
    if view.offset:
        text += f" from {view.offset}"
    if not is_as_it_lies(view):
        text += f" strides {list(view.strides)}"
    return text


def storage_name(program: form.Program, storage: int) -> str:
    """`input 0`, `parameter fc.weight`, `constant 2`; `buffer 7` for an allocation."""
    held: form.Storage = program.storages[storage]
    match held.origin:
        case form.Origin.INPUT | form.Origin.CONSTANT:
            return f"{held.origin.value} {held.index}"
        case form.Origin.PARAMETER:
            return f"parameter {held.name}"
        case form.Origin.ALLOCATION:
            return f"buffer {storage}"


# --- the whole program


def explain(program: form.Program) -> str:
    """The program as text: kernels, then the nodes of both sections, then outputs."""
    return "\n".join(_lines(program))


def _lines(program: form.Program) -> Iterator[str]:
    counts = Counter(_kind(placed.node) for placed in places(program))
    plurals = {"launch": "launches", "op": "ops", "value": "values", "choice": "choices"}
    said = [f"{n} {name if n == 1 else plurals[name]}" for name, n in counts.items()]
    yield f"program for {program.target}, {', '.join(said) or 'no nodes'}"
    if program.stateful:
        yield f"stateful: {program.stateful}"
    for at, kernel in enumerate(program.kernels):
        parameters = ", ".join(f"{p.name}: {p.type}" for p in kernel.parameters)
        options = f"{kernel.options.num_warps} warps, {kernel.options.num_stages} stages"
        size = f"{len(kernel.ttir)} bytes of TTIR"
        yield f"kernel {at}: {kernel.name}({parameters}), {options}, {size}"
    for section, nodes in (
        (form.Section.INIT, program.init),
        (form.Section.FORWARD, program.forward),
    ):
        if nodes:
            yield f"{section.value}:"
        for node in nodes:
            yield from _node_lines(program, node, INDENT)
    outputs = ", ".join(tensor_name(program, output) for output in program.outputs)
    yield f"returns {program.returned}: {outputs or 'nothing'}"


def _node_lines(program: form.Program, node: form.Node, indent: str) -> Iterator[str]:
    yield indent + (f"[line {node.line}] " if node.line else "") + _node_line(program, node)
    for number, one in enumerate(node.alternatives if isinstance(node, form.Choice) else ()):
        mark = " (chosen)" if isinstance(node, form.Choice) and node.chosen == number else ""
        yield f"{indent}{INDENT}{number}: {one.label}{mark}"
        for inner in one.nodes:
            yield from _node_lines(program, inner, indent + 2 * INDENT)


def _node_line(program: form.Program, node: form.Node) -> str:
    match node:
        case form.Launch():
            kernel = program.kernels[node.kernel]
            pairs = zip(kernel.parameters, node.arguments, strict=True)
            given = ", ".join(f"{one.name}={_argument(program, value)}" for one, value in pairs)
            return f"launch {kernel.name}{list(node.grid)}({given})"
        case form.Op():
            given = [_argument(program, one) for one in node.arguments]
            given += (f"{name}={_argument(program, one)}" for name, one in node.keywords.items())
            results = ", ".join(tensor_name(program, result) for result in node.results)
            name = short_operation(node.name)
            return f"op {name}({', '.join(given)}) -> {results or 'nothing'}"
        case form.Value():
            return f"value of {tensor_name(program, node.tensor)}: {node.answer}"
        case form.Choice():
            return f"choice of {len(node.alternatives)} configurations"


def _argument(program: form.Program, argument: form.Literal | form.LaunchArgument) -> str:
    match argument:
        case form.TensorUse():
            return tensor_name(program, argument.tensor)
        case form.Descriptor():
            block = list(argument.block_shape)
            return f"descriptor of {tensor_name(program, argument.tensor)} in blocks {block}"
        case form.NamedConstant():
            return argument.name
        case tuple():
            return f"[{', '.join(_argument(program, inner) for inner in argument)}]"
        case _:
            return str(argument)
