"""Text about a program for people: names of nodes in messages, and all of it for `--explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.walk import is_as_it_lies, places

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
