"""Captures one candidate: import, construct with the reference's parameters, forward several times.

The last call is the program. It has inputs of its own: one that uses those of an earlier call shows
that the candidate keeps a tensor in place of its content. A candidate that may keep something else
is called twice with the same tensors between them.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import triton
from torch.nn import init
from triton.compiler.errors import CompilationError

from forge.evalpool.judge.capture import building
from forge.evalpool.judge.capture.building import Parts, storages_of
from forge.evalpool.judge.capture.exchange import (
    Ask,
    Asking,
    CaptureFailed,
    Unsupported,
    line_of,
)
from forge.evalpool.judge.capture.lowering import compile_line, compile_words
from forge.evalpool.judge.capture.pretence import Card, Pretence
from forge.evalpool.judge.capture.recorder import Recorder
from forge.evalpool.judge.capture.stage import Stage, Tuning
from forge.evalpool.judge.channel.nesting import Keywords, nesting_of, spread
from forge.evalpool.judge.channel.words import needs_card
from forge.evalpool.judge.numbers.called import held_tensors, modules_of
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.dataflow import effects
from forge.evalpool.judge.program.format import (
    Choice,
    Node,
    Op,
    Origin,
    Program,
    Section,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.ops import KINDS, Kind, packet
from forge.evalpool.judge.program.walk import tensor_bytes
from forge.evalpool.judge.reference.construct import construct, construct_noting

AGAIN_WORDS = (
    "forward does less when it gets the same tensors again, whose values may be others by then: "
    "compute in every call"
)
MAX_CHECKS = 8
"""Truth values that a host may check; forward is called once more for each."""
CHANGES_WORDS = "the second call differs from the first"
LEFT_WORDS = "forward changes {}: a call leaves nothing behind but its outputs"
SHARED_WORDS = (
    "forward writes to what an earlier call has returned: allocate outputs in every call, or clone"
)
NUMPY = ".numpy() is not supported"
"""Part of torch's message where numpy would read a tensor on the card."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def capture(
    request: dict[str, Any],
    code: str,
    *,
    file: str,
    ask: Ask | None = None,
    notes: dict[str, Any] | None = None,
) -> Program:
    """The program of a candidate. Raises CaptureFailed if it failed, or does what a program cannot
    express.

    Args:
        request: Body of the judge's CANDIDATE frame: `entry_point`, `init`, `state`, `order`,
            `inputs` (of one input set: which one is not for the candidate to know), `tensors`,
            `target`, `choices`, `repeats` (one call is made twice), `is_first` (the first
            call is the program), `mode` ("gradients": inputs require them; "eval") and `is_pure`
            (a call may change nothing, and asks for the identity of no tensor).
        file: Where the source is written to: Triton reads kernels from it.
        ask: Answers with values that the host reads; without it they are unsupported.
        notes: Gets `follows_winner`: True if other winners of its choices make another program,
            `drawn_otherwise`: name of a tensor that has other values if nothing is loaded, and
            `is_checking`: True if it raises or does the same with other truth values.
    """
    session = Session(request, file=file, ask=ask)
    try:
        program = session.run(code)
    except CaptureFailed:
        raise
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of the candidate
        raise session.failed(error) from error
    if notes is not None:
        notes |= session.notes
    return program


class Session:
    """One candidate: its module, model, inputs and recorder."""

    def __init__(self, request: dict[str, Any], *, file: str, ask: Ask | None) -> None:
        self.request = request
        self.file = file
        self._device = "cuda"
        """Device of tensors for which a constructor names none: kernels may pack weights there."""
        self.step = "import"
        self.card = Card(**(request.get("target") or {}))
        self.asking = Asking(ask)
        stage = Stage.get()
        self.recorder = Recorder(fake=stage.fake, file=file, asking=self.asking)
        self.tuning = Tuning(self.recorder, request.get("choices") or {})
        self._is_pure = bool(request.get("is_pure"))
        stage.begin(self.card, self.recorder, self.tuning, is_pure=self._is_pure)
        self.asking.prefix = self._prefix
        self.init: list[Node] = []
        self.model: Any = None
        self.returned, self.nesting = "tensor", ""
        self._wants_gradients = request.get("mode") == "gradients"
        self._given: dict[int, Any] = {}
        self._num_inputs = 0
        self._old = set[int]()
        """Storages of the inputs of earlier calls."""
        self.notes = {"follows_winner": False, "drawn_otherwise": "", "is_checking": False}
        self._bound: list[tuple[str, str]] = []
        """Names of the model's tensors ("" for none: packed) and of the values they have."""

    def run(self, code: str) -> Program:
        """Raises anything that the candidate does."""
        recorder = self.recorder
        recorder.nodes = self.init
        with torch.no_grad(), recorder:
            module = self._import(code)
            self._construct(module)
            inputs = self._decode(self.request["inputs"], self._input)
            self.step, recorder.section = "call", Section.FORWARD
            since = len(recorder.storages)
            first, first_outputs = self._forward(inputs)
            if self.request.get("is_first"):
                return self._build(first, first_outputs, parts=recorder.parts)
            earlier = [*first, *self._repeated()]
            made = range(since, len(recorder.storages))
            inputs = self._other_inputs()
            own = len(recorder.storages)
            forward, outputs = self._forward(inputs)
        self._require_unshared(forward, [*first_outputs, *outputs], before=own)
        used = self._used(forward, outputs)
        if used & self._old:
            parts = building.forgotten(recorder.parts, self._old)
            words = "forward uses a tensor that an earlier call was given"
        else:
            parts = building.with_one_input_each(recorder.parts)
            calls = (building.flat(first), first_outputs), (building.flat(forward), outputs)
            words = "" if building.is_same_call(parts, *calls, since=since) else CHANGES_WORDS
        self.init += building.hoisted(recorder.parts, first=earlier, needed=used & set(made))
        # Choices that only an earlier call made, since the candidate remembers the winner: the
        # judge times them before the rest.
        chosen = {one.key: one for one in earlier if isinstance(one, Choice)}
        again = {one.key for one in forward if isinstance(one, Choice)}
        lost = [one for key, one in chosen.items() if key not in again]
        self.notes["follows_winner"] = not self.asking.num_values and (
            bool(lost) or self._follows(forward, outputs, since=own)
        )
        own_call = forward, outputs
        forward = [*lost, *forward]
        if (count := len(self.init) + len(forward)) > limits.MAX_NODES:
            raise Unsupported(f"{count} launches and operations; {limits.MAX_NODES} are allowed")
        program = self._build(forward, outputs, parts=parts, stateful=words)
        # Forward may do the same with another truth value that it reads.
        self.asking.is_repeating = True
        count = sum(isinstance(one, Value) and isinstance(one.answer, bool) for one in own_call[0])
        self.notes["is_checking"] = count <= MAX_CHECKS and all(
            self._is_same(own_call, since=own, negated=place) is not False for place in range(count)
        )
        if self.request.get("drawn") is not None:
            self.notes["drawn_otherwise"] = self._drawn_otherwise(module, self.request["drawn"])
        return program

    def _repeated(self) -> list[Node]:
        """Nodes of two calls with the same tensors, where asked for. Raises Unsupported for a host
        that returns what it had for them."""
        if not self.request.get("repeats"):
            return []
        self.asking.is_repeating, inputs = True, self._other_inputs()
        nodes, _ = self._forward(inputs)
        again, _ = self._forward(inputs)
        self.asking.is_repeating = False
        if len(again) < len(nodes):
            raise Unsupported(AGAIN_WORDS)
        return [*nodes, *again]

    def _require_unshared(self, forward: list[Node], outputs: list[int], *, before: int) -> None:
        """Raises Unsupported for a call that writes to an output of an earlier one, or returns what
        was allocated before it."""
        touched = self._used(forward, []) if self._is_pure else set[int]()
        for number in {self.recorder.tensors[one].storage for one in outputs} & touched:
            if number < before and self.recorder.storages[number].origin is Origin.ALLOCATION:
                raise Unsupported(SHARED_WORDS)

    def failed(self, error: BaseException) -> CaptureFailed:
        message, line, step = str(error), line_of(error, self.file), self.step
        kind = type(error).__name__
        if isinstance(error, CompilationError):
            step, message = "compile", compile_words(error)
            line = compile_line(error, self.file) or line
        elif isinstance(error, AssertionError | RuntimeError) and needs_card(message):
            first = message.split("\n")[0].split(". ")[0]
            kind, message = Unsupported.__name__, f"{first}: no card is here while host code runs"
        return CaptureFailed(stage=step, type=kind, message=message, line=line)

    def _drawn_otherwise(self, module: types.ModuleType, wanted: dict[str, str]) -> str:
        """Name of a tensor of the reference that the constructor, without values to take, draws
        otherwise; "" for none, or where it cannot be constructed once more."""
        recorder, self.recorder.asking = self.recorder, Asking(None)
        entry = getattr(module, self.request["entry_point"])
        try:
            arguments = self._decode(self.request["init"], self._argument)
            # On the host the recorder refuses to draw: another process has other numbers there.
            noted = nullcontext() if self._device == "cpu" else recorder
            with torch.no_grad(), noted, recorder.aside(), torch.device(self._device):
                model, origins = construct_noting(entry, arguments)
        except Exception:
            return ""
        own, draws = origins.by_name(model), {"", *origins.draws}
        pairs = [({own[name]} if name in own else draws, at) for name, at in self._bound]
        other = {at for made, at in pairs if wanted.get(at) not in made}
        return next((name for name in wanted if name in other), "")

    def _is_same(
        self,
        call: tuple[list[Node], list[int]],
        *,
        since: int,
        negated: int = -1,
        winners: dict[str, str] | None = None,
    ) -> bool | None:
        """True if another call of forward does the same as `call`, nodes and outputs of one whose
        first storage is `since`; None if it raises. `negated`: place of a truth value that is
        another one then. `winners`: as for `_forward`."""
        form, self.asking.negated = (self.returned, self.nesting), negated
        try:
            with torch.no_grad(), self.recorder:
                other = self._forward(self._other_inputs(), winners=winners)
        except Unsupported:
            return False
        except Exception:
            return None
        finally:
            found, self.asking.negated = (self.returned, self.nesting), -1
            self.returned, self.nesting = form
        return found == form and building.is_same_call(
            building.with_one_input_each(self.recorder.parts), call, other, since=since
        )

    def _follows(self, forward: list[Node], outputs: list[int], *, since: int) -> bool:
        """True if a call does something else than in its alternative where another one has won:
        host code reads the winner (`best_config`), or the kernel is launched once more."""
        made = [one for one in forward if isinstance(one, Choice)]
        for number in range(1, max((len(one.alternatives) for one in made), default=1)):
            won = {one.key: one.alternatives[number % len(one.alternatives)] for one in made}
            nodes = [
                inner
                for one in forward
                for inner in (won[one.key].nodes if isinstance(one, Choice) else (one,))
            ]
            labels = {key: one.label for key, one in won.items()}
            if not self._is_same((nodes, outputs), since=since, winners=labels):
                return True
        return False

    def _used(self, nodes: list[Node], outputs: list[int]) -> set[int]:
        parts = self.recorder.parts
        found = {parts.tensors[number].storage for number in outputs}
        return found.union(*(storages_of(node, parts) for node in nodes))

    def _other_inputs(self) -> Any:
        """The inputs again, in memory of their own."""
        stored = enumerate(self.recorder.storages)
        self._old = {number for number, one in stored if one.origin is Origin.INPUT}
        self._num_inputs = 0
        return self._decode(self.request["inputs"], self._input)

    def _build(
        self, forward: list[Node], outputs: list[int], *, parts: Parts, **facts: Any
    ) -> Program:
        made: Any = {"init": self.init, "forward": forward, "outputs": outputs}
        facts = {"returned": self.returned, "nesting": self.nesting, **facts}
        return building.build(
            parts, **made, **facts, target=self.card.target, triton=triton.__version__
        )

    def _prefix(self, *, outputs: list[int]) -> Program:
        """The program until now, for a question to the judge."""
        is_forward = self.recorder.section is Section.FORWARD
        forward = self.recorder.nodes if is_forward else []
        parts = building.forgotten(self.recorder.parts, self._old)
        return self._build(forward, outputs, parts=parts, returned="tuple", nesting="")

    def _import(self, code: str) -> types.ModuleType:
        """Runs the candidate as a module of a real file: Triton reads kernel sources from it."""
        path = Path(self.file)
        path.write_text(code)
        Stage.get().prepare_for(code)
        module = types.ModuleType("candidate")
        module.__file__ = self.file
        sys.modules["candidate"] = module
        exec(compile(code, self.file, "exec", dont_inherit=True), module.__dict__)
        return module

    def _construct(self, module: types.ModuleType) -> None:
        """Constructs with the reference's parameters, and loads what was not taken. Where the order
        in which they were made contradicts the names, constructs again without; where numpy reads a
        new tensor, with tensors of the host."""
        names, wanted = self.request.get("held", []), self.request.get("gives_held", False)
        state = {
            name: self._make(index, origin=Origin.PARAMETER, name=name)
            for name, index in self.request["state"]
            if wanted or name not in names
        }
        held = {name: state.pop(name) for name in names if name in state}
        order, start = self.request.get("order", []), len(self.init)

        def is_constructed(known: dict[str, Any]) -> bool:
            del self.init[start:]
            values = Weights(known, order=order)
            return self._constructed(module, state, values, held=held)

        try:
            is_taken = is_constructed(state)
        except RuntimeError as error:
            if NUMPY not in str(error):
                raise
            self._device = "cpu"
            is_taken = is_constructed(state)
        if not is_taken:
            is_constructed({})

    def _constructed(
        self,
        module: types.ModuleType,
        state: dict[str, Any],
        values: Weights,
        *,
        held: dict[str, Any],
    ) -> bool:
        """True if names and order agree."""
        self.step = "init"
        arguments = self._decode(self.request["init"], self._argument)
        with values.applied(), torch.device(self._device):
            model = construct(getattr(module, self.request["entry_point"]), arguments)
        recorder = self.recorder
        own = {recorder.storage_of(one) for one in values.tensors}
        self.init[:] = without_initialising(self.init, recorder.parts, own)
        if isinstance(model, torch.nn.Module):
            model = model.to("cuda")
        drawn = drawn_storages(self.init, recorder.parts) if held else set[int]()

        def is_drawn(one: torch.Tensor) -> bool:
            is_known = one.layout is torch.strided and recorder.is_known(one)
            return is_known and recorder.storage_of(one) in drawn

        given = load_held(model, held, is_drawn=is_drawn)
        taken = values.names_in(model)
        self.model = model
        if isinstance(model, torch.nn.Module):
            dtype = DTYPES.get(self.request.get("precision", "fp32"))
            if self.request.get("cast") and dtype is not None:  # a reference; no candidate is
                self.model = model.to(dtype)
            if self.request.get("mode") == "eval":
                self.model.eval()
        self.step = "load"
        named = state_of(self.model)
        named = {name: one for name, one in named.items() if name not in given}
        found = targets(named, state, taken, values.sources)
        packed = {*values.sources, *held} - {*found.values()}
        self._bound = [*found.items(), *(("", source) for source in packed)]
        hook = getattr(self.model, "load_reference", None)
        if callable(hook):
            hook(dict(state))
            return True
        reached = {source for name, source in taken.items() if found.get(name) == source}
        if not reached.issuperset(taken.values()):
            return False
        load_values(named, state, found)
        return True

    def _forward(
        self, inputs: list[Any], *, winners: dict[str, str] | None = None
    ) -> tuple[list[Node], list[int]]:
        """Nodes and outputs of one call. `winners`: labels of alternatives that have won before."""
        nodes: list[Node] = []
        self.recorder.begin_call(nodes)
        self.asking.begin_call()
        self.tuning.begin_call(winners)
        with torch.set_grad_enabled(self._wants_gradients):
            by_place, by_name = spread(inputs)
            before = dict(self._surroundings(inputs))
            result = self.model(*by_place, **by_name)
            after = dict(self._surroundings(inputs))
        names = before | after  # a buffer that was None may be filled, once
        if changed := [one for one in names if before.get(one, ...) not in (None, after.get(one))]:
            raise Unsupported(LEFT_WORDS.format(changed[0]))
        result = () if result is None else result  # an in-place problem
        self.nesting = nesting_of(result)
        self.returned = next(
            (kind.__name__ for kind in (tuple, list, dict) if isinstance(result, kind)), "tensor"
        )
        return nodes, [self._output(one) for one in flatten(result)]

    def _surroundings(self, inputs: Any) -> Iterator[tuple[str, Any]]:
        """Yields all that a call must leave as it is, by name; the policy has the content."""
        if not self._is_pure:
            return
        yield "the gradient mode", torch.is_grad_enabled()
        yield from self._form("its arguments", inputs)
        for place, one in modules_of(self.model):
            name = f"self.{place}".rstrip(".")
            yield f"training of {name}", one.training
            for key, value in vars(one)["_buffers"].items():
                is_tensor = isinstance(value, torch.Tensor)
                yield f"{name}.{key}", _geometry(value) if is_tensor else None
            for key, value in vars(one)["_parameters"].items():
                if isinstance(value, torch.Tensor):
                    yield f"{name}.{key}", (self.recorder.storage_of(value), _geometry(value))
        yield "the shape of a tensor that it keeps", self.recorder.num_turned

    def _form(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """The parts of an argument: containers, numbers, and tensors by their place in memory."""
        if isinstance(value, types.SimpleNamespace):
            value = vars(value)
        if isinstance(value, list | tuple | dict):
            parts: Any = value if isinstance(value, dict) else dict(enumerate(value))
            yield name, [*parts]
            for key, one in parts.items():
                yield from self._form(f"{name}[{key!r}]", one)
        elif isinstance(value, torch.Tensor):
            yield name, (self.recorder.storage_of(value), _geometry(value))
        else:
            yield name, (type(value), repr(value))

    def _output(self, value: Any) -> int:
        kind = type(value).__name__
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and value.device.type == "cuda":
                return self.recorder.tensor(value)
            is_sparse = value.layout is not torch.strided
            kind = "sparse tensor" if is_sparse else f"tensor on {value.device.type}"
        raise TypeError(f"forward returned a {kind}; return tensors on the inputs' device")

    # Tensors that the judge supplies

    def _decode(self, tree: Any, make: Any) -> Any:
        kind, value = tree
        if kind == "tensor":
            return make(value)
        if kind == "permuted":
            return self._decode(value[0], make).permute(value[1])
        if kind in ("dict", "keywords"):
            made = {key: self._decode(item, make) for key, item in value}
            return made if kind == "dict" else Keywords(made)
        if kind in ("list", "tuple"):
            items = [self._decode(item, make) for item in value]
            return items if kind == "list" else tuple(items)
        if kind == "config":  # of a transformers model: fields are attributes, as in the original
            return types.SimpleNamespace(**value)
        return getattr(torch, value) if kind == "dtype" else value

    def _input(self, index: int) -> Any:
        number = self._num_inputs
        self._num_inputs += 1
        made = self._make(index, origin=Origin.INPUT, index=number)
        is_float = made.is_floating_point() and made.element_size() > 1
        return made.requires_grad_() if self._wants_gradients and is_float else made

    def _argument(self, index: int) -> Any:
        """A tensor among the constructor's arguments: a parameter named `init.<place>`."""
        if index not in self._given:
            name = f"init.{len(self._given)}"
            self._given[index] = self._make(index, origin=Origin.PARAMETER, name=name)
        return self._given[index]

    def _make(self, place: int, **facts: Any) -> Any:
        dtype, shape = self.request["tensors"][place][:2]
        return self.recorder.given(tuple(shape), getattr(torch, dtype), **facts)


def _geometry(one: Any) -> tuple[Any, ...]:
    return one.shape, one.stride(), one.storage_offset(), one.dtype, one.requires_grad


def flatten(result: Any) -> Iterator[Any]:
    """Leaves of what forward returned, in order; None counts as nothing."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        for one in result:
            yield from flatten(one)
    elif result is not None:
        yield result


# --- the reference's parameters, for a constructor and after it
#
# A kernel may pack, transpose or fold its weights in `__init__`: each new `nn.Parameter` *is* the
# reference's next one of the same shape, in the order in which the reference made its own; a buffer
# is the one with its own name. Functions that initialise (torch.nn.init, the filling methods) leave
# such tensors alone, and so does any other operation in place that reads no second parameter. The
# rest is matched by name, then by order among those of equal shape. Not covered: another order
# among equal shapes than the reference's: `Session` notices it and constructs again without values.


FILLS = ("uniform_", "normal_", "zero_", "fill_", "random_", "bernoulli_", "exponential_")
"""Methods of tensors that initialise."""


class Weights:
    """The reference's values on the card, and which tensors of the candidate have taken them."""

    def __init__(self, state: dict[str, Any], *, order: list[str]) -> None:
        """`state`: fake tensors by the reference's names, which made them in this order."""
        names = dict.fromkeys([*(name for name in order if name in state), *state])
        self._left = {name: state[name] for name in names}
        self._taken: dict[int, tuple[Any, str]] = {}
        """Tensor and name by torch's storage. The tensor is kept, so that its storage is not
        reused."""

    @property
    def sources(self) -> set[str]:
        return {name for _, name in self._taken.values()}

    @property
    def tensors(self) -> list[Any]:
        return [tensor for tensor, _ in self._taken.values()]

    def name_of(self, tensor: torch.Tensor) -> str | None:
        kept = self._taken.get(tensor.untyped_storage()._cdata)
        return kept[1] if kept is not None and kept[0].shape == tensor.shape else None

    def names_in(self, model: Any) -> dict[str, str]:
        """The reference's names of the values in a model, by the model's names."""
        own = state_of(model)
        return {name: found for name, one in own.items() if (found := self.name_of(one))}

    def taken(self, tensor: torch.Tensor, *, name: str | None = None) -> Any:
        """The tensor to use instead: the next value of its shape (and of its name, if it has one),
        or a copy of it where type or strides differ; the tensor itself if there is none. Integers
        and bools are taken by name and type alone: a counter of batches, a mask."""
        if not _is_plain(tensor) or self.name_of(tensor) is not None:
            return tensor
        is_float = tensor.is_floating_point()
        if name is None and not is_float:
            return tensor
        for key, value in self._left.items():
            is_named = name is None or key.rpartition(".")[2] == name
            is_typed = value.is_floating_point() if is_float else value.dtype is tensor.dtype
            if is_named and is_typed and value.shape == tensor.shape:
                del self._left[key]
                found = _like(tensor, value)
                self._taken[found.untyped_storage()._cdata] = (found, key)
                return found
        return tensor

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Constructs models with the reference's values while inside."""
        register, make = torch.nn.Module.register_buffer, torch.nn.Parameter.__new__

        def register_buffer(module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(tensor, torch.Tensor):
                tensor = self.taken(tensor, name=name)
            register(module, name, tensor, *args, **kwargs)

        def parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, torch.Tensor):
                data = self.taken(data)
            return make(cls, data, *args, **kwargs)

        patches = Pretence()
        try:
            patches.set(torch.nn.Parameter, "__new__", staticmethod(parameter))
            patches.set(torch.nn.Module, "register_buffer", register_buffer)
            functions = [n for n in vars(init) if n.endswith("_") and not n.startswith("_")]
            initialisers = [*((init, n) for n in functions), *((torch.Tensor, n) for n in FILLS)]
            for owner, name in initialisers:
                kept = self._unless_taken(getattr(owner, name))
                patches.set(owner, name, kept)
            yield
        finally:
            patches.undo()

    def _unless_taken(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """The function `fill`, without effect on tensors that have taken values."""

        @functools.wraps(fill)
        def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and self.name_of(tensor) is not None:
                return tensor
            return fill(tensor, *args, **kwargs)

        return filled


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor can take values: memory of its own for each element."""
    is_strided = tensor.layout is torch.strided and not tensor.is_meta
    return is_strided and tensor.numel() > 0 and 0 not in tensor.stride()


def _like(tensor: torch.Tensor, value: Any) -> Any:
    """The value itself, or a copy with the type and strides of a tensor."""
    if tensor.dtype == value.dtype and tensor.stride() == value.stride():
        return value
    stride = tensor.stride() if _is_plain(tensor) else value.stride()
    empty = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=value.device)
    return empty.copy_(value)


def without_initialising(nodes: Iterable[Node], parts: Parts, own: set[int]) -> list[Node]:
    """The nodes of a constructor that do not initialise a parameter in place.

    `weight[padding].fill_(0)` and `weight.mul_(0.02)` are left out: the reference's constructor has
    done so, and its values, which are in the storages `own`, were drawn afterwards. So is a copy of
    one whole parameter to another, by which an encoder and its average begin alike. Any other
    operation that reads another parameter folds one into the other, and stays.
    """
    derived = {at for at, one in enumerate(parts.storages) if one.origin is Origin.PARAMETER} | own
    kept: list[Node] = []
    for node in nodes:
        touched = storages_of(node, parts)
        written = effects(parts, node, {}).writes if isinstance(node, Op) else frozenset[int]()
        is_alone = not (touched - written) & derived or _is_whole_copy(node, parts, own)
        if written and written <= own and is_alone:
            continue
        if touched & derived:
            derived |= touched
        kept.append(node)
    return kept


def _is_whole_copy(node: Node, parts: Parts, own: set[int]) -> bool:
    """True for a copy of all of one value of the reference to all of another, as it lies."""
    if not isinstance(node, Op) or node.name != "aten.copy_.default":
        return False
    used = [one.tensor for one in node.arguments if isinstance(one, TensorUse)]
    into, source = (parts.tensors[number] for number in used[:2])
    sizes = [tensor_bytes(into), tensor_bytes(source)]
    lengths = [parts.storages[one.storage].num_bytes for one in (into, source)]
    return source.storage in own and into.strides == source.strides and sizes == lengths


def targets(
    own: dict[str, torch.Tensor], state: dict[str, Any], taken: dict[str, str], used: set[str]
) -> dict[str, str]:
    """The reference's name for each of a model's own tensors, by the model's names. `taken`: names
    of values that these were constructed with; `used`: that any tensor was, which may lie packed
    elsewhere."""
    found = {name: name for name in own if name in state and own[name].shape == state[name].shape}
    for name, source in taken.items():
        if name not in found and source not in found.values():
            found[name] = source
    left = [source for source in state if source not in found.values() and source not in used]
    for name, tensor in own.items():
        source = next((one for one in left if state[one].shape == tensor.shape), None)
        if name not in found and source is not None:
            found[name] = source
            left.remove(source)
    return found


def load_values(own: dict[str, torch.Tensor], state: dict[str, Any], found: dict[str, str]) -> None:
    """Copies the reference's values into a model's tensors that are not those values already."""
    for name, source in found.items():
        target, value = own[name], state[source]
        if target.untyped_storage()._cdata != value.untyped_storage()._cdata:
            target.copy_(value)


def state_of(model: Any) -> dict[str, torch.Tensor]:
    return model.state_dict() if isinstance(model, torch.nn.Module) else {}


def drawn_storages(nodes: Iterable[Node], parts: Parts) -> set[int]:
    """Storages of random numbers, and of what is computed from them."""
    found: set[int] = set()
    for node in nodes:
        touched = storages_of(node, parts)
        kind = KINDS.get(packet(node.name)) if isinstance(node, Op) else None
        if kind is Kind.RANDOM or (touched & found and kind is not Kind.FILL):
            found |= effects(parts, node, {}).writes
    return found


def load_held(
    model: Any, values: dict[str, Any], *, is_drawn: Callable[[torch.Tensor], bool]
) -> set[str]:
    """Gives a model the reference's values, of tensors that no `state_dict` has, in place of random
    numbers of its constructor: `self.h0 = torch.randn(8)`. By name, then by order among equal types
    and shapes; a parameter or saved buffer by its name alone. Returns the names of these."""
    if not values:
        return set()
    left, state = dict(values), state_of(model)
    same = {
        name: name
        for name in state
        if name in left and _are_alike(left[name], state[name]) and is_drawn(state[name])
    }
    load_values(state, left, same)
    own = [one for one in held_tensors(model) if is_drawn(one.tensor)]
    for one in sorted(own, key=lambda one: one.name not in left):
        names = [one.name, *left] if one.name in left else [*left]
        found = next((name for name in names if _are_alike(left[name], one.tensor)), None)
        if found is not None:
            one.replace(_like(one.tensor, left.pop(found)))
    return set(same)


def _are_alike(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    are_floats = value.is_floating_point() and tensor.is_floating_point()
    return value.shape == tensor.shape and (are_floats or value.dtype is tensor.dtype)
