"""Traces a problem with symbolic sizes, gives the code that Inductor would compile for a card, and
answers the problem with that as plain Triton, in a child process that imported this file before its
fork.

Each axis of each input and parameter has a symbol; what the model does with them merges some, and
fixes others (`sizes.py`). The answer is the code that Inductor generates for sm_90, and how the
problem's forward calls it: what `forge.data.inductor.rewrite` takes.
"""

from __future__ import annotations

import ast
import contextlib
import keyword
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import torch
import torch._inductor.graph
import torch.hub
from torch._inductor import compile_fx, config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import modules
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.compiler.lines import FILE, marks, texts_of
from forge.data.inductor.compiler.sizes import Layer, Sizes, substitution
from forge.data.inductor.compiler.templates import (
    attributes,
    plain_operations,
    pretend,
    reductions,
    templates,
)
from forge.data.inductor.rewrite import rewrite
from forge.data.inductor.source import Traced, dotted, expression, forward_of, walk

OPTIONS: dict[str, Any] = {
    "force_disable_caches": True,
    "keep_output_stride": False,
    "prologue_fusion": False,
    "pattern_matcher": False,
    "triton.max_tiles": 1,
    "triton.coalesce_tiling_analysis": False,
    "alignment_asserts": False,
    "assert_indirect_indexing": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "split_reductions": False,
    "online_softmax": False,
    "layout_optimization": False,
    "fallback_random": True,
    "triton.cooperative_reductions": False,
    "triton.mix_order_reduction": False,
    "shape_padding": False,
    "compile_threads": 1,
}
"""Inductor's settings for code that is short to read."""


class _Generated(BaseException):
    """Ends a compilation when its code is there. No Exception, which Inductor would wrap."""

    def __init__(self, code: str) -> None:
        self.code = code


LAYERS = (modules.conv._ConvNd, modules.pooling._MaxPoolNd, modules.pooling._AvgPoolNd)
"""Layers with a window."""
MAKERS = {f"torch.{one}" for one in ("rand", "randn", "randint", "ones", "zeros", "empty")}
"""Functions whose arguments are the sizes of an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A tensor that the model holds: a parameter, a buffer, or a plain attribute."""

    path: str
    owner: torch.nn.Module
    name: str
    value: torch.Tensor


def trace(problem: str, *, with_attributes: bool = True) -> Traced:
    """The answer of a problem as Inductor writes it. Without attributes, numbers that modules keep
    become no symbols. Raises Unanswered."""
    with _reason("not traced"), contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        with _reason("the problem does not run"):
            model, inputs = _subject(problem)
        for one in model.modules():  # norms in training: no output depends on their statistics
            if isinstance(one, torch.nn.modules.batchnorm._NormBase) and one.training:
                one.running_mean = one.running_var = one.num_batches_tracked = None
        plain_operations(stack)
        marks(stack)
        env = ShapeEnv(duck_shape=False)
        fake = _Fake(shape_env=env, allow_non_fake_inputs=True)
        held = sorted(_held(model), key=lambda one: "." not in one.path)  # layers first
        given: list[tuple[Any, Any]]
        given, spec = pytree.tree_flatten_with_path(list(inputs))
        definitions = _definitions(problem)
        names = _names(forward_of(definitions).args, len(inputs))
        sizes = fake.sizes = Sizes(env, fake, _defined(definitions) | {*names})
        axes = _given_axes(problem)
        symbols = [
            sizes.symbolic(one, f"x{k}", axes.get(path[0].idx), owner=names[path[0].idx])
            for k, (path, one) in enumerate(given)
        ]
        symbols += [
            sizes.symbolic(
                one.value,
                f"self.{one.path}",
                _axes(one),
                owner=(one.path.rpartition(".")[0] or one.path).replace(".", "_"),
            )
            for one in held
        ]  # after the inputs, from which a size is read if it can be
        texts = [_label(path, names) for path, _ in given] + [_attribute(one.path) for one in held]
        made = _Run(model, held, spec, sizes, with_attributes=with_attributes)
        kinds = (torch.Tensor, torch.SymInt, torch.SymFloat)
        passed = [place for place, one in enumerate(symbols) if isinstance(one, kinds)]
        with fake, torch.set_grad_enabled(False):

            def flat(*values: torch.Tensor) -> list[Any]:
                full = [*symbols]
                for place, value in zip(passed, values, strict=True):
                    full[place] = value
                return made.run(full[len(given) :], full[: len(given)])

            function = torch.func.functionalize(flat, remove="mutations")
            traced = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)
            graph = traced(*(symbols[place] for place in passed))
            sizes.settle()
            _without_indices(graph)
            _move_to_card(graph)
            results = (node.meta.get("val") for node in graph.graph.nodes)
            sizes.shapes += [tuple(x.shape) for x in results if isinstance(x, torch.Tensor)]
            pretend(stack)
            templates(stack)
            reductions(stack)
            substitution(stack, sizes)
            with _reason("not compiled"):
                code = _code(graph, [sizes.on_card(symbols[place]) for place in passed])
        assert made.result is not None
        return Traced(
            code=_with_formulas(code, sizes.formulas),
            definitions=definitions,
            given=[expression(texts[place]) for place in passed],
            result=made.result,
            names=sizes.names,
            windows=sizes.windows,
            lines=texts_of(problem, model),
        )


class _Fake(FakeTensorMode):
    """Fake tensors; a convolution's or a pool's result has symbols of its own for its sides."""

    sizes: Sizes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        return self.sizes.of_windows(func, result, args)


@contextlib.contextmanager
def _reason(words: str) -> Iterator[None]:
    """Raises Unanswered for whatever a problem or torch raises."""
    try:
        yield
    except Unanswered:
        raise
    except Exception as err:
        lines = str(err).strip().splitlines() or [""]
        raise Unanswered(words, f"{type(err).__name__}: {lines[0]}"[:300]) from err


def _given_axes(problem: str) -> dict[int, list[str]]:
    """Names that `get_inputs` has for the axes of an input, by its number; empty ones for others:
    who writes `x.shape` copies them from `torch.rand(batch_size, dim)`."""
    tree = ast.parse(problem)
    inside = [*walk(*(one for one in tree.body if getattr(one, "name", "") == "get_inputs"))]
    known = {
        target.id: one.value
        for one in (*tree.body, *inside)
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    returned = [one.value for one in inside if isinstance(one, ast.Return)]
    inputs = returned[-1].elts if returned and isinstance(returned[-1], ast.List) else []
    found: dict[int, list[str]] = {}
    for place, one in enumerate(inputs):
        nodes = walk(known.get(one.id, one) if isinstance(one, ast.Name) else one)
        made = next(
            (x for x in nodes if isinstance(x, ast.Call) and dotted(x.func) in MAKERS), None
        )
        if made is not None:
            sizes = [x for x in made.args if isinstance(x, ast.Tuple)] or made.args
            found[place] = [*_axis_names(sizes, known)]
    return found


def _axis_names(given: Sequence[ast.expr], known: Mapping[str, ast.expr]) -> Iterator[str]:
    """Names of sizes, of which some stand in a tuple that has a name."""
    for one in given:
        inner = one.value if isinstance(one, ast.Starred) else one
        name = inner.id if isinstance(inner, ast.Name) else ""
        match known.get(name, inner):
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                yield from _axis_names(elements, known)
            case _:
                yield name


def _axes(held: Held) -> tuple[str, ...] | None:
    """Names of a parameter's axes."""
    rank, kind = held.value.dim(), type(held.owner).__name__
    taps = ("kernel_depth", "kernel_height", "kernel_width")[-(rank - 2) :] if rank > 2 else ()
    if held.name == "weight" and kind.startswith("ConvTranspose"):
        out = "out_channels" if held.owner.groups == 1 else "group_channels"
        return ("in_channels", out, *taps)
    if held.name == "weight" and kind.startswith("Conv"):
        return ("out_channels", "in_channels", *taps)
    if rank == 2 and held.name.startswith("weight"):
        return ("out_features", "in_features")
    if rank == 1:
        return ("features",)
    return None


def _subject(problem: str) -> tuple[Any, Sequence[Any]]:
    """Model and inputs; fake ones, which take no memory, unless the problem looks into them."""
    module = types.ModuleType("problem")
    exec(compile(problem, FILE, "exec"), module.__dict__)
    torch.manual_seed(0)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _model(module), module.get_inputs()
    except Exception:
        return _model(module), module.get_inputs()


def _model(module: types.ModuleType) -> Any:
    """The model of constructor arguments in a list, or of `[[...], {...}]`, of which some are
    named."""
    match module.get_init_inputs():
        case [list() as given, dict() as named]:
            return module.Model(*given, **named)
        case given:
            return module.Model(*given)


def _held(model: torch.nn.Module) -> Iterator[Held]:
    seen = set[int]()
    for path, owner in model.named_modules():
        own = {**owner._parameters, **owner._buffers, **owner.__dict__}
        for name, value in own.items():
            if isinstance(value, torch.Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield Held(
                    path=f"{path}.{name}" if path else name, owner=owner, name=name, value=value
                )


@dataclass(slots=True)
class _Run:
    """A run of a model with other tensors in place of those it holds."""

    model: torch.nn.Module
    held: list[Held]
    spec: Any
    sizes: Sizes
    with_attributes: bool
    result: ast.expr | None = None
    """The value that forward returns; names like `0` in it stand for its tensors."""

    def run(self, tensors: list[Any], inputs: list[Any]) -> list[Any]:
        new = {id(one.value): value for one, value in zip(self.held, tensors, strict=True)}
        args = pytree.tree_unflatten(inputs, self.spec)
        with contextlib.ExitStack() as stack:
            numbers = attributes(self.model, new) if self.with_attributes else []
            for place, name, symbol in numbers:
                stack.enter_context(mock.patch.dict(place, {name: symbol}))
            for owner in self.model.modules():
                for place in (owner._parameters, owner._buffers, owner.__dict__):
                    found = {k: new[id(v)] for k, v in place.items() if id(v) in new}
                    if found:
                        stack.enter_context(mock.patch.dict(place, found))
            for path, owner in self.model.named_modules():
                if isinstance(owner, LAYERS):
                    layer = Layer(text=_attribute(path), owner=owner)
                    noted = partial(self._note, layer)
                    stack.callback(owner.register_forward_pre_hook(noted).remove)
                    stack.callback(owner.register_forward_hook(partial(self._note, None)).remove)
            result = self.model(*args)
        leaves: list[Any] = []
        self.result = _written(result, leaves)
        return leaves

    def _note(self, layer: Layer | None, *_: Any) -> None:
        self.sizes.layer = layer


def _written(value: Any, leaves: list[Any]) -> ast.expr:
    """The expression of a returned value; its tensors are put into `leaves`."""
    match value:
        case torch.Tensor():
            leaves.append(value)
            return ast.Name(id=str(len(leaves) - 1), ctx=ast.Load())
        case tuple() if type(value) is tuple:
            return ast.Tuple(elts=[_written(one, leaves) for one in value], ctx=ast.Load())
        case list():
            return ast.List(elts=[_written(one, leaves) for one in value], ctx=ast.Load())
        case None | bool() | int() | float() | str():
            return ast.Constant(value)
        case _:
            raise TypeError(f"forward returns a {type(value).__name__}")


VALUES = {
    torch.ops.aten.max.dim: torch.ops.aten.amax.default,
    torch.ops.aten.min.dim: torch.ops.aten.amin.default,
}
"""Operations that give values alone, by those that give indices, too."""


def _without_indices(graph: Any) -> None:
    """Looks for no index of an extremum that nobody reads."""
    graph.graph.eliminate_dead_code()
    for node in list(graph.graph.nodes):
        if node.target in VALUES and [one.args[1] for one in node.users] == [0]:
            (values,) = node.users
            with graph.graph.inserting_before(values):
                made = graph.graph.call_function(VALUES[node.target], node.args, node.kwargs)
            made.meta = values.meta
            values.replace_all_uses_with(made)
    graph.graph.eliminate_dead_code()


def _move_to_card(graph: Any) -> None:
    """Makes a graph that was traced on the CPU one for a card: indexing needs no card there.

    A tensor that is written to in place, from outside, stays as it was: outputs alone count.
    """
    card = torch.device("cuda", 0)
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
            continue
        if node.op == "get_attr":  # a number that forward makes a tensor of
            value = getattr(graph, node.target, None)
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                with _disable_current_modes():  # which have symbols in place of numbers
                    number = value.item()
                    short = float(f"{number:.6g}") if isinstance(number, float) else number
                    if bool((torch.tensor(short, dtype=value.dtype) == value).all()):
                        number = short  # 0.4, not the nearest number of fp32
                with graph.graph.inserting_before(node):
                    given, options = (list(value.shape), number), {"dtype": value.dtype}
                    made = graph.graph.call_function(torch.ops.aten.full.default, given, options)
                made.meta, made.kwargs = node.meta, {**options, "device": card}
                node.replace_all_uses_with(made)
                graph.graph.erase_node(node)
                if all(one.target != node.target for one in graph.graph.nodes):
                    delattr(graph, node.target)  # which would be an input
            continue
        node.args = pytree.tree_map(
            lambda one: card if isinstance(one, torch.device) else one, node.args
        )
        node.kwargs = {
            k: card if isinstance(v, torch.device) else v for k, v in node.kwargs.items()
        }
    graph.recompile()


def _code(graph: Any, given: list[Any]) -> str:
    """The text that Inductor would compile for a graph."""

    def stop(lowering: Any) -> NoReturn:
        made, *_ = lowering.codegen()
        raise _Generated(getattr(made, "value", made))

    owner = torch._inductor.graph.GraphLowering
    with mock.patch.object(owner, "_compile_to_module", stop), config.patch(OPTIONS):
        try:
            compile_fx.compile_fx(graph, given)
        except _Generated as done:
            return done.code
    raise Unanswered("no operation", "the graph has none")


def _with_formulas(code: str, formulas: dict[str, str]) -> str:
    """The code with the sizes that follow from others after those of the inputs."""
    begin = code.find("        with torch.cuda._DeviceGuard")
    if begin < 0:
        raise Unanswered("no operation", "the graph has views alone")
    lines = [f"        {name} = {text}\n" for name, text in formulas.items()]
    return code[:begin] + "".join(lines) + code[begin:]


def _definitions(problem: str) -> list[ast.stmt]:
    """The problem's definitions, with the class renamed to ModelNew."""
    tree = ast.parse(problem)
    skipped = {"get_inputs", "get_init_inputs", "get_input_sets"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Model":
            node.id = "ModelNew"
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            node.name = "ModelNew"
    return [one for one in tree.body if getattr(one, "name", "") not in skipped]


def _defined(definitions: list[ast.stmt]) -> set[str]:
    """Names of functions, classes and imports of the problem."""
    owners = [one for one in definitions if isinstance(one, ast.Import | ast.ImportFrom)]
    imported = {one.asname or one.name for owner in owners for one in owner.names}
    return imported | {getattr(one, "name", "") for one in definitions}


def _names(given: ast.arguments, num_inputs: int) -> list[str]:
    """Names of the inputs in forward."""
    names = [one.arg for one in [*given.posonlyargs, *given.args]][1:]
    if given.vararg:
        names += [f"{given.vararg.arg}[{k}]" for k in range(num_inputs - len(names))]
    return names


def _attribute(path: str) -> str:
    """`self.layers[0].weight` for `layers.0.weight`."""
    parts = path.split(".")
    return "self" + "".join(
        f".{one}" if one.isidentifier() and not keyword.iskeyword(one)
        else f"[{one}]" if one.isdecimal()
        else f"._modules[{one!r}]"
        for one in parts
    )  # fmt: skip


def _label(path: Any, names: list[str]) -> str:
    """`x[1]` for the second element of the input `x`."""
    first, *rest = path
    keys = [getattr(one, "idx", getattr(one, "key", None)) for one in rest]
    return names[first.idx] + "".join(f"[{key!r}]" for key in keys)


FINAL = ("random", "no kernel")
"""Reasons that another trace does not change."""
WARMING = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.linear = nn.Linear(20, 24)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean(dim=(2, 3))
        x = nn.functional.gelu(self.linear(x))
        return x.softmax(-1) * x.sigmoid()


def get_inputs():
    return [torch.randn(6, 3, 18, 22)]


def get_init_inputs():
    return []
"""


def preload() -> None:
    """Prepares torch for a fork for each problem, by an answer: what it loads and remembers on the
    way, a tenth of an answer's time, no child does again."""
    torch.set_num_threads(1)
    vars(torch.hub)["tqdm"].monitor_interval = 0  # its thread would stop the forks
    with torch.no_grad():
        answer(WARMING)


def answer(text: str) -> Answered:
    """The answer of a problem, at the sizes of its text. Raises Unanswered."""
    first: Unanswered | None = None
    for with_attributes in (True, False):
        try:
            return rewrite(trace(text, with_attributes=with_attributes))
        except Unanswered as error:
            if error.reason in FINAL:
                raise
            first = first or error
        except Exception as error:  # of a form of code that no one has seen
            said = f"{type(error).__name__}: {error}"[:300]
            first = first or Unanswered("not rewritten", said)
    assert first is not None
    raise first
