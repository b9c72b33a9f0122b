"""Puts a plain module together: imports, jitted functions, kernels, the entry class; and prints it
without docstrings."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from forge.data.harvest.closure import globals_of
from forge.data.harvest.records import Unanswered
from forge.data.inductor import call
from forge.data.inductor.kernel import FUNCTIONS, translate
from forge.data.inductor.source import (
    GeneratedAnswer,
    GeneratedKernel,
    Substituted,
    Traced,
    dotted,
    expression,
    free_name,
    named,
    names_in,
    walk,
)

GIVEN = ("torch", "triton", "triton.language", "triton.language.extra", "torch.nn")
"""Modules whose imports are written anew."""
MAX_NAME = 32
"""Longest name of a kernel."""
HEAVY = (
    *("convolution", "bmm", "mm", "addmm", "softmax", "log softmax", "batch norm", "layer norm"),
    *("group norm", "max pool", "avg pool", "cumsum", "sum", "mean", "var", "max", "amax"),
    "argmax",
)  # fmt: skip
"""Operations that name a kernel before others."""
WITHOUT_PARAMETERS = re.compile(
    r"nn\.(\w*Pool\dd|\w*Pad\dd?|\w*Loss|\w*[Ss]oftmax\w*|Softmin|Flatten|Unflatten|Upsample|Identity"
    r"|\w*Dropout\w*|Pixel\w+|ChannelShuffle|CosineSimilarity|PairwiseDistance|Threshold|[A-Z]*ELU"
    r"|Re[Ll][Uu]6?|LeakyReLU|SiLU|Mish|GLU|\w*[Ss]igmoid|\w*[Tt]anh\w*|Soft\w+|\w*shrink|Hardswish)$"
)
"""Layers that hold no tensor unless their arguments do."""
PARTS = re.compile(r"^triton_(?:poi|per|red|tem|for|spl|unk)_fused_(.*?)_?\d*$")
LABELS = {
    "native_batch_norm_legit_no_training": "batch norm", "native_batch_norm_legit": "batch norm",
    "native_group_norm": "group norm", "native_layer_norm": "layer norm",
    "low_memory_max_pool_with_offsets": "max pool", "max_pool2d_with_indices": "max pool",
    "max_pool3d_with_indices": "max pool", "max_pool": "max pool", "avg_pool": "avg pool",
    "log_softmax": "log softmax", "to_copy": "cast",
}  # fmt: skip
"""Words for operations whose names in Inductor have several parts."""
VIEWS = {"t", "view", "expand", "select", "clone", "unsafe", "squeeze", "unsqueeze", "permute"}
"""Operations that compute nothing."""
OPERATION = re.compile("|".join([*LABELS, "[^_]+"]))


def write_module(
    answer: GeneratedAnswer,
    traced: Traced,
    kernels: dict[str, GeneratedKernel],
    forward: call.Forward,
) -> str:
    """The module's source. Raises Unanswered."""
    sizes = [*traced.names.values()]
    kernels = {key: _ordered(one, sizes) for key, one in kernels.items()}
    names = kernel_names(kernels)
    made = [_kernel(one, names[key]) for key, one in kernels.items()]
    functions = _functions(answer, made)
    _rename_operators(answer, [*functions, *made])
    traced.forward.body = _body(kernels, names, forward)
    (model,) = (one for one in traced.definitions if getattr(one, "name", "") == "ModelNew")
    assert isinstance(model, ast.ClassDef)
    _shorten(model)
    others = _needed([one for one in traced.definitions if one is not model], [model, *made])
    imports = [one for one in others if isinstance(one, ast.Import | ast.ImportFrom)]
    rest = [one for one in others if one not in imports]
    body = [*rest, *functions, *made, model]
    imports = [*_imports(body), *imports]
    defined = {name for one in [*imports, *body] for name in _defined(one)}
    if missing := sorted(globals_of(ast.Module([*imports, *body], [])) - defined):
        raise Unanswered("unknown name", ", ".join(missing))
    comments = {names[key]: one.comment for key, one in kernels.items() if one.comment}
    return print_module([imports, body], comments)


def _ordered(kernel: GeneratedKernel, sizes: Sequence[str]) -> GeneratedKernel:
    """The kernel with its pointers first, then the sizes in their order, then others."""

    def place(name: str) -> int:
        return -1 if name.endswith("_ptr") else sizes.index(name) if name in sizes else len(sizes)

    return replace(kernel, params=tuple(sorted(kernel.params, key=place)))


def operations(kernel: str) -> list[str]:
    """Words for the operations in the name that Inductor gave a kernel; views if all are views."""
    found = PARTS.match(kernel)
    names = [one[0] for one in OPERATION.finditer(found[1] if found else kernel)]
    return [LABELS.get(one, one) for one in names if one not in VIEWS] or names


def kernel_names(kernels: dict[str, GeneratedKernel]) -> dict[str, str]:
    """Readable names: `softmax_kernel` for `triton_per_fused__softmax_0`."""
    taken, names = {*FUNCTIONS}, dict[str, str]()
    for key in kernels:
        words = sorted(operations(key), key=lambda one: one not in HEAVY)[:2]
        stem = "_".join(words).replace(" ", "_")
        while len(stem) > MAX_NAME:
            stem = stem.rpartition("_")[0] or stem[:MAX_NAME]
        names[key] = free_name(f"{stem}_kernel" if stem else "kernel", taken)
    return names


def _kernel(kernel: GeneratedKernel, name: str) -> ast.FunctionDef:
    made = ast.parse(f"@triton.jit\ndef {name}(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    kinds = {True: named("tl.constexpr"), False: None}
    made.body = kernel.body or [ast.Pass()]
    made.args.args = [
        ast.arg(arg=one, annotation=kinds[one in kernel.constexprs])
        for one in (*kernel.arguments, *(p for p in kernel.params if p in kernel.constexprs))
    ]
    return made


def _functions(answer: GeneratedAnswer, kernels: Sequence[ast.FunctionDef]) -> list[ast.stmt]:
    """Jitted functions that the kernels call, and those that these call."""
    found: dict[str, ast.stmt] = {}
    waiting = sorted(names_in(*kernels))
    while waiting:
        name = waiting.pop(0)
        if name in found or (name not in FUNCTIONS and name not in answer.combines):
            continue
        if name in FUNCTIONS:
            node = ast.parse(FUNCTIONS[name]).body[0]
        else:  # an operator of a scan
            node = translate(copy.deepcopy(answer.combines[name]))
            node.decorator_list = [named("triton.jit")]
            match node.args.args, node.body:
                case [first, second], [ast.Assign(value=value), ast.Return(value=ast.Name())]:
                    short = {first.arg: named("a"), second.arg: named("b")}
                    node.body = [ast.Return(Substituted(short).visit(value))]
                    first.arg, second.arg = "a", "b"
        found[name] = node
        waiting.extend(sorted(names_in(node)))
    return [found[name] for name in reversed(found)]


def _rename_operators(answer: GeneratedAnswer, nodes: list[ast.stmt]) -> None:
    """Short names for operators of scans, which Inductor names by all that they do."""
    names = {one: f"combine_{number}" for number, one in enumerate(answer.combines, start=1)}
    for node in walk(*nodes):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef):
            node.name = names.get(node.name, node.name)


def _body(
    kernels: dict[str, GeneratedKernel], names: dict[str, str], forward: call.Forward
) -> list[ast.stmt]:
    """The statements of a forward that launches the kernels."""
    outputs = [one.write() for one in forward.outputs]
    result = _Filled(outputs).visit(copy.deepcopy(forward.result))
    known = [one for one in forward.inputs if isinstance(one.expr, ast.Name)]
    made: list[tuple[call.Step, list[ast.stmt]]] = []
    for one in forward.steps:
        made.append((one, [*_step(one, kernels, names, forward.device, known)]))
        if isinstance(one, call.Allocate):
            known.append(one.root)
    read = names_in(result)
    kept: list[tuple[call.Step, list[ast.stmt]]] = []
    for step, nodes in reversed(made):
        if not isinstance(step, call.Number) or step.name in read:
            read |= names_in(*(ast.parse(ast.unparse(node)) for node in nodes))  # a grid is a text
            kept.append((step, nodes))
    body: list[ast.stmt] = []
    for axes, group in groupby(reversed(kept), lambda one: _axis(one[0], forward)):
        steps = [*group]
        if axes is not None:
            body += _sizes([step for step, _ in steps], *axes)
        else:
            body += (node for _, nodes in steps for node in nodes)
    return [*body, ast.Return(value=result)]


def _axis(step: call.Step, forward: call.Forward) -> tuple[str, int] | None:
    """Input and number of its axes, for a step that reads the length of one."""
    match step:
        case call.Number(value=ast.Subscript(value=ast.Attribute(value=owner, attr="shape"))):
            text = ast.unparse(owner)
            if text.startswith("self."):  # `out_channels = self.conv.weight.shape[0]`
                return None
            ranks = (
                len(one.size) for one in forward.inputs if one.size and dotted(one.expr) == text
            )
            return next(((text, rank) for rank in ranks), None)
        case _:
            return None


def _sizes(steps: Sequence[call.Step], tensor: str, rank: int) -> Iterator[ast.stmt]:
    """`batch, _, length = x.shape` for the lengths of an input."""
    names = ["_"] * rank
    for one in steps:
        assert isinstance(one, call.Number)
        place = getattr(getattr(one.value, "slice", None), "value", None)
        if rank == 1 or not isinstance(place, int) or names[place] != "_":
            yield _assign(named(one.name), one.value)
        else:
            names[place] = one.name
    if set(names) != {"_"}:
        yield ast.parse(f"{', '.join(names)} = {tensor}.shape").body[0]


def _step(
    step: call.Step, kernels: dict[str, GeneratedKernel], names: dict[str, str], device: ast.expr,
    known: Sequence[call.Root],
) -> Iterator[ast.stmt]:  # fmt: skip
    match step:
        case call.Number():
            yield _assign(named(step.name), step.value)
        case call.Allocate():
            yield _assign(step.root.expr, _allocation(step, device, known))
        case call.Compute():
            tensors = [one.write() for one in step.tensors]
            value = _Filled(tensors).visit(copy.deepcopy(step.call))
            yield _assign(step.result.expr, value)
        case call.Launch():
            # `ast.unparse` leaves out a tuple's parentheses in brackets; as a name it keeps them.
            text = ast.unparse(ast.Tuple(elts=step.grid, ctx=ast.Load()))
            grid = ast.Name(id=text, ctx=ast.Load())
            if kernels[step.kernel].kind == "template":
                yield _assign(named("grid"), grid)
                grid = named("grid")
            yield ast.Expr(value=_launch(step, kernels[step.kernel], names[step.kernel], grid))


def _allocation(step: call.Allocate, device: ast.expr, known: Sequence[call.Root]) -> ast.expr:
    """Memory for a buffer: like a tensor of its type before it, where there is one."""
    root = step.root
    assert root.size is not None
    assert root.stride is not None
    is_plain = call.is_contiguous(root.size, root.stride)
    kin = [one for one in known if root.dtype and dotted(one.dtype) == dotted(root.dtype)]
    if is_plain and kin:
        for one in kin:
            if (
                one.size
                and call.same(one.size, root.size)
                and call.is_contiguous(one.size, one.stride)
            ):
                return expression(f"torch.empty_like({ast.unparse(one.expr)})")
        owner, size = ast.unparse(kin[0].expr), ast.unparse(call.as_tuple(root.size))
        return expression(f"{owner}.new_empty({size})")
    given = [ast.unparse(call.as_tuple(root.size))]
    given += [] if is_plain else [ast.unparse(call.as_tuple(root.stride))]
    options = f"device={ast.unparse(device)}, dtype={dotted(root.dtype) or 'torch.float32'}"
    function = "empty" if is_plain else "empty_strided"
    return expression(f"torch.{function}({', '.join(given)}, {options})")


def _launch(step: call.Launch, kernel: GeneratedKernel, name: str, grid: ast.expr) -> ast.Call:
    given = [step.arguments[one] for one in kernel.arguments]
    return ast.Call(
        func=ast.Subscript(value=named(name), slice=grid, ctx=ast.Load()),
        args=[_argument(one) if isinstance(one, call.View) else one for one in given],
        keywords=[
            ast.keyword(arg=one, value=_constant(step, one))
            for one in kernel.params
            if one in kernel.constexprs
        ],
    )


def _constant(step: call.Launch, name: str) -> ast.expr:
    """The number of a constexpr, or the attribute of the layer that holds it."""
    held = step.window.find(name, step.sizes[name]) if step.window else ""
    return expression(held or str(step.sizes[name]))


def _argument(value: call.View) -> ast.expr:
    """The tensor that a kernel gets, which needs a pointer alone."""
    return value.write() if value.offset else copy.deepcopy(value.root.expr)


def _assign(target: ast.expr, value: ast.expr) -> ast.Assign:
    assert isinstance(target, ast.Name)
    name = ast.Name(id=target.id, ctx=ast.Store())
    return ast.Assign(targets=[name], value=value, lineno=0)


def _shorten(model: ast.ClassDef) -> None:
    """Leaves out of a class what has no effect: annotations, and attributes that nothing reads."""
    read = {
        one.attr
        for one in walk(model)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load)
    }
    for method in model.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        method.returns = None
        for one in walk(method.args):
            if isinstance(one, ast.arg):
                one.annotation = None
        if method.name == "__init__":
            method.body = [one for one in method.body if not _is_idle(one, read)]
            for one in walk(*method.body):
                if isinstance(one, ast.Call) and dotted(one.func) == "super":
                    one.args = []
    usual = ("def __init__(self):", "super().__init__()")  # what a module's own does
    model.body = [one for one in model.body if tuple(ast.unparse(one).split("\n    ")) != usual]


def _is_idle(node: ast.stmt, read: set[str]) -> bool:
    """True for an attribute that nothing reads and that holds no tensor."""
    match node:
        case ast.Assign(
            targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value
        ) if name not in read:
            is_layer = isinstance(value, ast.Call) and WITHOUT_PARAMETERS.match(dotted(value.func))
            return isinstance(value, ast.Name | ast.Constant) or bool(is_layer)
        case _:
            return isinstance(node, ast.Pass)


def _needed(others: Sequence[ast.stmt], nodes: Iterable[ast.AST]) -> list[ast.stmt]:
    """The statements of a problem that define a name in use, in their order."""
    sources = {name: node for node in others for name in _defined(node)}
    chosen: set[ast.stmt] = set()
    waiting = [name for node in nodes for name in globals_of(node)]
    while waiting:
        node = sources.get(waiting.pop())
        if node is not None and node not in chosen and not _is_given(node):
            chosen.add(node)
            waiting.extend(globals_of(node))
    return [node for node in others if node in chosen]


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(one.asname or one.name).partition(".")[0] for one in names]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case _:
            return []


def _is_given(node: ast.stmt) -> bool:
    """True for imports that are written anew."""
    match node:
        case ast.Import(names=[ast.alias(name=name, asname=other)]):
            return name in GIVEN and other in (None, "tl", "nn")
        case ast.ImportFrom(module=str(module)):
            return module.startswith("triton")
        case _:
            return False


def _imports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    # torch and nn always: a small model leaves out what is there at times.
    used = names_in(*body) | {"torch", "nn"}
    lines = {
        "torch": "import torch",
        "nn": "import torch.nn as nn",
        "triton": "import triton",
        "tl": "import triton.language as tl",
        "libdevice": "from triton.language.extra import libdevice",
    }
    return [ast.parse(line).body[0] for name, line in lines.items() if name in used]


class _Filled(ast.NodeTransformer):
    """Puts expressions where placeholders stand."""

    def __init__(self, values: list[ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.values[int(node.id)] if node.id.isdecimal() else node


COMMENT = " # type: "
"""The mark that `ast.unparse` puts before the comment of an assignment, which is the number and the
text of a line of the problem."""
STRING = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|['"].*""", re.DOTALL)
"""A literal as its group; or one without an end, to the end of the text."""
BROKEN = re.compile(
    r"( *)(def \w*kernel\w*\(|\w*kernel\w*\[.*?\]\()(.*?), ([A-Z]\w*(?:=|: ).*, .*)(\):?)"
)
"""A kernel's first line, or its launch, with several constexprs: what comes before them, they."""


def print_module(groups: Sequence[Sequence[ast.stmt]], comments: Mapping[str, str]) -> str:
    """Source of groups of statements: groups, and definitions in them, two lines apart.

    `comments` are lines above functions, by name. A statement is a line, however long: where a
    width breaks it, nobody who writes from left to right can know. Constexprs have their own line.
    """
    parts: list[str] = []
    for group in groups:
        was_plain = False
        for node in group:
            is_plain = not isinstance(node, ast.FunctionDef | ast.ClassDef)
            gap = "\n" if is_plain and was_plain else "\n\n\n"
            was_plain = is_plain
            comment = comments.get(getattr(node, "name", ""))
            above = "".join(f"# {one}\n" for one in (comment or "").splitlines())
            parts.append((gap if parts else "") + above + "\n".join(_lines(node)))
    return "".join(parts) + "\n"


def _lines(node: ast.stmt) -> Iterator[str]:
    """The lines of a statement, none empty below a header."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.body = [x for x in one.body if not _is_text(x)] or [ast.Pass()]
    before, above = "", ("", "")
    for line in ast.unparse(node).split("\n"):
        if line or not before.endswith(":"):
            line, _, comment = line.partition(COMMENT)
            margin = line[: len(line) - len(line.lstrip())]
            if comment and above != (margin, comment):
                yield f"{margin}# {comment.partition(' ')[2]}"
            above = (margin, comment or above[1]) if margin == above[0] else (margin, comment)
            text = _with_double_quotes(line)
            if found := BROKEN.fullmatch(text):
                margin, head, values, options, end = found.groups()
                yield from (margin + head, f"{margin}    {values},", f"{margin}    {options}")
                text = margin + end
            yield text
        before = line


def _is_text(node: ast.stmt) -> bool:
    """True for a string that only describes."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


def _with_double_quotes(text: str) -> str:
    """The text with double quotes around strings that contain neither quotes nor escapes."""

    def quoted(found: re.Match[str]) -> str:
        inner = found[0][1:-1]
        is_plain = found[0][0] == "'" and inner and '"' not in inner and "\\" not in inner
        return f'"{inner}"' if found[1] and is_plain else found[0]

    return STRING.sub(quoted, text)
