"""Traces a problem with symbolic sizes, gives the code that Inductor would compile for a card, and
answers the problem with that as plain Triton, in a child process that imported this file before its
fork.

Each axis of each input and parameter has a symbol; what the model does with them merges some, and
fixes others. A size that follows from these by a division has one, too (`Sizes`), so that a kernel
computes with `out_height` and no formula. The answer is the code that Inductor generates for sm_90,
and how the problem's forward calls it: what `forge.data.inductor.rewrite` takes.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import keyword
import re
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NoReturn
from unittest import mock

import sympy
import torch
import torch._inductor.graph
import torch.hub
from torch._dynamo.source import ConstantSource
from torch._inductor import compile_fx, config
from torch._inductor.codegen import common
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import Scheduler
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.nn import modules
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, ModularIndexing
from torch.utils._sympy.printers import PythonPrinter

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.compiler.templates import (
    attributes,
    plain_operations,
    pretend,
    reductions,
    templates,
)
from forge.data.inductor.rewrite import rewrite
from forge.data.inductor.source import Traced, Window, dotted, expression, forward_of, walk

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
WINDOW = {
    "KERNEL": "kernel_size", "STRIDE": "stride", "PADDING": "padding", "DILATION": "dilation",
    "MORE": "output_padding",
}  # fmt: skip
"""Attributes of such a layer, by the numbers of a window."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with a window, under the name that forward has for it."""

    text: str
    owner: torch.nn.Module

    def number(self, kind: str, axis: int, value: int) -> str:
        """The attribute that holds a number of the window for an axis; the number if none does."""
        match held := getattr(self.owner, WINDOW[kind], None):
            case int() if held == value:
                return f"{self.text}.{WINDOW[kind]}"
            case tuple() if len(held) > axis and held[axis] == value:
                return f"{self.text}.{WINDOW[kind]}[{axis}]"
            case _:
                return str(value)


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
        return ("in_channels", "out_channels", *taps)
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
    exec(problem, module.__dict__)
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


FIRST = 9000
"""Number of the first symbol for a size that follows from others."""
SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
AXES = {
    1: ("length",),
    2: ("num_rows", "num_columns"),
    3: ("batch", "length", "features"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}
"""Names of axes of an input, by rank."""
LAYER, GIVEN, HELD, SIDE = range(4)
"""Ranks of names: a convolution's tensors and a layer's weights, inputs, parameters, and sides of a
convolution's result."""


@dataclass(slots=True)
class Sizes:
    """Makes tensors whose sizes are symbols, and names all symbols."""

    env: ShapeEnv
    fake: FakeTensorMode
    taken: set[str]
    """Names that sizes may not have."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """By symbol."""
    wishes: dict[Any, tuple[int, str, str]] = field(default_factory=dict[Any, tuple[int, str, str]])
    """A rank, a name, and the tensor that comes before the name where it is taken, by symbol."""
    formulas: dict[str, str] = field(default_factory=dict[str, str])
    """Sizes that follow from others, by symbol, in their order."""
    derived: dict[Any, tuple[Any, Any]] = field(default_factory=dict[Any, tuple[Any, Any]])
    """By division: the symbol, and what it is more than the division."""
    others: set[Any] = field(default_factory=set[Any])
    """Divisions that are no size of a tensor."""
    shapes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """Shapes of all results of the graph."""
    sides: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sides of the results of convolutions, by their formula."""
    layer: Layer | None = None
    """The layer with a window that runs."""
    multiples: list[tuple[Any, int]] = field(default_factory=list[tuple[Any, int]])
    """Sizes of channels that a norm divides into so many groups."""
    windows: list[Window] = field(default_factory=list[Window])
    """Layers with a window, in the order in which they ran."""

    def symbolic(
        self, value: Any, label: str, axes: Sequence[str] | None = None, *, owner: str
    ) -> Any:
        """A fake tensor with symbolic sizes in place of a tensor, a symbol for a number. The label
        of a tensor that the model holds begins with `self.`; the owner comes before the name of a
        size where two have the same."""
        if type(value) in (int, float):
            return self._number(value, label)
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.strided:
            raise ValueError(f"{label} is {value.layout}, no plain tensor")
        names = AXES.get(value.dim(), tuple(f"size{k}" for k in range(value.dim())))
        if axes and len(axes) == len(names):
            names = [one or name for one, name in zip(axes, names, strict=True)]
        is_taps = label.startswith("self.") and value.dim() > 2
        sizes: list[Any] = []
        source = label.replace(".", "_")
        for axis, n in enumerate(value.shape):
            is_number = n < 2 or (is_taps and axis > 1 and n <= 16)
            is_layers = axes is not None and value.dim() > 1  # one axis may be that of an input
            rank = GIVEN if not label.startswith("self.") else LAYER if is_layers else HELD
            wish = (rank, names[axis], owner)
            sizes.append(int(n) if is_number else self._symbol(int(n), f"{source}_{axis}", wish))
        strides: list[Any] = [0] * len(sizes)
        step: Any = 1
        order = range(len(sizes))
        for axis in sorted(
            order, key=lambda axis: (value.stride(axis), value.size(axis) != 1, -axis)
        ):
            strides[axis] = 0 if value.stride(axis) == 0 and value.size(axis) > 1 else step
            step = step * sizes[axis]
        with self.fake:
            return torch.empty_strided(sizes, strides, dtype=value.dtype)

    def on_card(self, value: Any) -> Any:
        """The same tensor on a card."""
        if not isinstance(value, torch.Tensor):
            return value
        with self.fake:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cuda"
            )

    def _symbol(self, length: int, name: str, wish: tuple[int, str, str]) -> Any:
        source = ConstantSource(name)
        symbol = self.env.create_symbol(
            length, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self.wishes[symbol] = wish
        return self.env.create_symintnode(symbol, hint=length, source=source)

    def _number(self, value: float, label: str) -> Any:
        source = ConstantSource(label)
        symbol = self.env.create_unspecified_symbol(
            value, source=source, dynamic_dim=DimDynamic.DYNAMIC
        )
        make = self.env.create_symfloatnode if type(value) is float else self.env.create_symintnode
        return make(symbol, hint=value, source=source)

    def settle(self) -> None:
        """Names the symbols, those that the model has found equal by the best of their wishes."""
        groups: dict[str, list[Any]] = {}
        chosen: dict[str, str] = {}
        for symbol in self.wishes:
            first: Any = symbol
            while getattr(other := self.env.replacements.get(first), "is_Symbol", False):
                first = other
            groups.setdefault(str(first), []).append(symbol)
            chosen[str(symbol)] = str(first)
        formulas, self.formulas = self.formulas, {}
        for first, group in groups.items():
            if str(group[0]) in formulas:  # symbols of sides come last
                text = formulas[str(group[0])]
                self.formulas[first] = re.sub(r"(?<![\w.])s\d+", lambda one: chosen[one[0]], text)
        for group in sorted(groups.values(), key=lambda one: min(self.wishes[s][0] for s in one)):
            _, name, owner = min((self.wishes[one] for one in group), key=lambda one: one[0])
            self.names |= dict.fromkeys(map(str, group), self._free(name, owner))
        self.names = {str(one): self.names[str(one)] for one in self.wishes}

    def _free(self, name: str, owner: str = "") -> str:
        """A name that nothing else has."""
        options = [name, f"{owner}_{name}" if owner else "", *(f"{name}_{k}" for k in range(2, 99))]
        chosen = next(one for one in options if one.isidentifier() and one not in self.taken)
        self.taken.add(chosen)
        return chosen

    def of_windows(self, function: Any, result: Any, args: Sequence[Any]) -> Any:
        """The result of a convolution or a pool with symbols for its sides: a kernel has
        `out_height`, whatever that is."""
        if function is torch.ops.aten.convolution.default:
            x, weight, _, stride, padding, dilation, transposed, more, _ = args
            kernel = weight.shape[2:]
        elif function is torch.ops.aten.native_group_norm.default:
            if isinstance(args[4], torch.SymInt):
                self.multiples.append((args[4].node, int(args[6])))
            return result
        elif function.namespace == "forge_data":
            x, kernel, stride, padding, dilation = args
            weight, transposed, more = None, False, (0,)
        else:
            return result
        rank = len(kernel)
        if x.dim() != rank + 2:
            return result
        sides = SIDES[rank]
        channels = ("in_channels", "out_channels")[:: 1 if transposed else -1]
        self._wish(x, ("batch", "in_channels" if weight is not None else "channels", *sides))
        if weight is not None:
            self._wish(weight, channels)
        sizes = list(result.shape)
        given = dict(zip(WINDOW, (kernel, stride, padding, dilation, more), strict=True))
        numbers = [
            {kind: int(one[k % len(one)]) for kind, one in given.items()} for k in range(rank)
        ]
        texts = [
            {
                kind: self.layer.number(kind, axis, n) if self.layer else str(n)
                for kind, n in one.items()
            }
            for axis, one in enumerate(numbers)
        ]
        if self.layer is not None:
            held = "" if weight is None else f"{self.layer.text}.weight"
            self.windows.append(Window(held, numbers, texts))
        for axis, name in enumerate(sides):
            size, before = sizes[2 + axis], x.shape[2 + axis]
            if isinstance(size, torch.SymInt) and isinstance(before, torch.SymInt):
                formula = (
                    "({} - 1) * {STRIDE} - 2 * {PADDING} + {DILATION} * ({KERNEL} - 1) + {MORE} + 1"
                    if transposed
                    else "({} + 2 * {PADDING} - {DILATION} * ({KERNEL} - 1) - 1) // {STRIDE} + 1"
                )
                known, text = (formula.format(before, **one[axis]) for one in (numbers, texts))
                sizes[2 + axis] = self._side(size, name, known, text)
        return result.new_empty(sizes)

    def _wish(self, tensor: Any, names: Sequence[str]) -> None:
        """Names the axes of a convolution's or pool's tensor, if they have no better names."""
        for size, name in zip(tensor.shape, names, strict=False):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            rank, _, owner = self.wishes.get(symbol, (SIDE, "", ""))
            if rank in (GIVEN, HELD):
                self.wishes[symbol] = (LAYER, name, owner)

    def _side(self, size: torch.SymInt, name: str, formula: str, text: str) -> torch.SymInt:
        """A symbol for the side of a result by its formula, which the text says as forward does."""
        hint = size.node.hint
        if hint is None or hint < 2:
            return size
        if formula not in self.sides:
            made = self._symbol(hint, f"side_{len(self.sides)}", (SIDE, f"out_{name}", ""))
            self.formulas[str(made.node.expr)] = text
            self.sides[formula] = made
        return self.sides[formula]

    def substituted(self, expr: Any) -> Any:
        """The expression with symbols in place of divisions of sizes."""
        if not isinstance(expr, sympy.Expr):
            return expr
        if expr.has(FloorDiv, CleanDiv, ModularIndexing, Max):
            for node, groups in self.multiples:
                expr = _whole(expr, node.expr, groups)
            expr = self._without_divisions(expr)
        return _factored(expr) if expr.is_Add or expr.is_Mul else expr

    def _without_divisions(self, expr: Any) -> Any:
        expr = expr.replace(
            lambda e: isinstance(e, Max) and 1 in e.args,
            lambda e: Max(*(a for a in e.args if a != 1)),
        )
        while found := [
            one
            for one in expr.atoms(FloorDiv, CleanDiv)
            if _is_size(one) and one not in self.others
        ]:
            one = min(found, key=sympy.count_ops)
            made = self._derived(one)
            if made is None:
                self.others.add(one)
            else:
                expr = expr.xreplace({one: made})
        return expr.replace(
            lambda e: isinstance(e, FloorDiv), lambda e: FloorDiv(_factored(e.args[0]), e.args[1])
        )

    def _derived(self, division: Any) -> Any:
        division, rest = _normal(division)
        if division.is_Symbol or division.is_Integer:
            return division + rest
        if division not in self.derived:
            new = self._new(division)
            if new is None:
                return None
            self.derived[division] = new
        symbol, more = self.derived[division]
        return symbol - more + rest

    def _new(self, division: Any) -> tuple[Any, Any] | None:
        """A symbol for the size that a division gives but for a constant; None if none does."""
        more, name = sympy.Integer(0), ""
        for shape in self.shapes:
            for axis, one in enumerate(shape):
                difference = sympy.expand(_plain(one) - _plain(division))
                if difference.is_Integer and not name:
                    more = difference
                    sides = SIDES.get(len(shape) - 2, ())
                    name = sides[axis - 2] if axis >= 2 and sides else f"size{axis}"
        if not name:
            return None
        value = division + more
        symbol = sympy.Symbol(f"s{FIRST + len(self.derived)}", integer=True, positive=True)
        hint = int(V.graph.sizevars.optimization_hint(value, fallback=64))
        self.env.backed_var_to_val[symbol] = sympy.Integer(hint)
        self.names[str(symbol)] = self._free(f"out_{name}")
        self.formulas[str(symbol)] = str(value)
        return symbol, more


def _whole(expr: Any, size: Any, groups: int) -> Any:
    """The expression with a size in place of `groups * (size // groups)`, of which it is a
    multiple."""
    part = sympy.Symbol("part", integer=True, positive=True)

    def is_whole(term: Any) -> bool:
        factor, rest = term.as_coeff_Mul()
        return factor.is_Integer and factor % groups == 0 and part in sympy.Mul.make_args(rest)

    made = expr.xreplace({size: groups * part})
    made = made.replace(lambda e: e.is_Mul and is_whole(e), lambda e: e / (groups * part) * size)
    return made.xreplace({part: FloorDiv(size, groups)})


@cache
def _factored(expr: Any) -> Any:
    """A constant, and one term for each product of indices, whose factor is a product of sizes."""
    indices = sorted((one for one in expr.free_symbols if not _is_size(one)), key=str)
    constant, rest = sympy.expand(expr).as_coeff_Add()
    parts = sympy.collect(rest, indices, evaluate=False)
    return sympy.Add(constant, *(key * sympy.factor(value) for key, value in parts.items()))


def _is_size(expr: Any) -> bool:
    return all(one.name.startswith("s") and one.name[1:].isdecimal() for one in expr.free_symbols)


def _normal(division: Any) -> tuple[Any, Any]:
    """A division by a number without multiples of it in its base, and what they give."""
    base, by = division.args
    if not by.is_Integer:
        return division, 0
    constant = sum((t for t in sympy.Add.make_args(base) if t.is_Integer), sympy.Integer(0))
    kept = constant % by
    return FloorDiv(base - constant + kept, by), (constant - kept) // by


def _plain(expr: Any) -> Any:
    """A size with divisions in their normal form."""
    expr = getattr(getattr(expr, "node", None), "expr", expr)
    return sympy.sympify(expr).replace(
        lambda e: isinstance(e, FloorDiv), lambda e: sum(_normal(e), sympy.Integer(0))
    )


def _expanded(dep: Any) -> Any:
    if not isinstance(dep, MemoryDep):
        return dep
    size = tuple(sympy.expand(one) for one in dep.size)
    return dataclasses.replace(dep, index=sympy.expand(dep.index), size=size)


def _is_multiple(_: Any, whole: Any, part: Any) -> bool:
    """True if the factors of each term show it. Sympy's own search for a proof takes half of a
    trace's time, and finds none that changes a kernel."""
    if whole in (part, 0):
        return True
    if isinstance(whole, int | sympy.Integer) and isinstance(part, int | sympy.Integer):
        return int(whole) % int(part) == 0
    coefficient, factors = sympy.sympify(part).as_coeff_mul()
    for term in sympy.Add.make_args(sympy.sympify(whole)):
        number, found = term.as_coeff_mul()
        if number % coefficient or Counter(factors) - Counter(found):
            return False
    return True


def substitution(stack: contextlib.ExitStack, sizes: Sizes) -> None:
    """Puts symbols for divisions into kernels and their launches until the stack is left, and
    answers Inductor's questions about sizes in less time."""
    rename, printed = common.Kernel.rename_indexing, PythonPrinter.doprint

    def rename_indexing(self: Any, index: Any) -> Any:
        if isinstance(index, list | tuple):
            return [rename_indexing(self, one) for one in index]
        made = sizes.substituted(V.graph.sizevars.simplify(index))
        if sizes.multiples:
            ranges = {name: one.length for name, one in self.range_tree_nodes.items()}
            made = V.graph.sizevars.simplify_with_ranges(made, ranges)
        return rename(self, made)

    def doprint(self: Any, expr: Any, **options: Any) -> str:
        return printed(self, sizes.substituted(expr), **options)

    fits = Scheduler.fusable_read_and_write

    def fusable(self: Any, read: Any, write: Any, **options: Any) -> bool:
        """As Inductor decides, with sums of products written in one way."""
        return fits(self, _expanded(read), _expanded(write), **options)

    for owner, name, value in (
        (SizeVarAllocator, "statically_known_multiple_of", _is_multiple),
        (Scheduler, "fusable_read_and_write", fusable),
        (common.Kernel, "rename_indexing", rename_indexing),
        (PythonPrinter, "doprint", doprint),
    ):
        stack.enter_context(mock.patch.object(owner, name, value))
