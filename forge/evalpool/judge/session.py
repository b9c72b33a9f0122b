"""Untrusted: one candidate in its runner, from import to each call and what that left.

Made by `runner.py` on a CPU, by `gpu_runner.py` on a GPU. Promise: what forward returned is told
by its exact type, and copied or left; no method that came with it is called.
"""

from __future__ import annotations

import math
import mmap
import sys
import types
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from forge.evalpool.judge.initial import Initial, construct
from forge.evalpool.judge.opcount import OpCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.Tensor, torch.nn.Parameter)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""What a reference is cast to; fp32 leaves what the problem made."""
_copy, _detach = torch.Tensor.copy_, torch.Tensor.detach
"""Torch's own, whatever a candidate puts in their place."""


class KernelRefused(Exception):
    """The compiler does not take a kernel that the candidate launched."""


class Session:
    """One candidate: its module, its model, its tensors, its launches."""

    def __init__(
        self,
        request: dict[str, Any],
        *,
        memory: Any,
        compiler: Any,
        refused: type[Exception],
        file: str,
    ) -> None:
        self.request = request
        self.file = file
        self.compiler = compiler
        self.refused = refused
        self.stage = "import"
        self.num_launches = 0
        self.is_ghost = False
        self.compiled: set[str] = set()
        self.compile_line: int | None = None
        self.has_derived = False
        """Whether the model holds tensors that no parameter was loaded into."""
        self.failed_launch: BaseException | None = None
        """The first. Catching it, to compute the answer elsewhere, does not make it good."""
        self.tensors = [self.view(memory, *spec) for spec in request["tensors"]]
        self.work: dict[str, int] = {}
        """Of the last call: what torch itself did, by operation."""
        self.is_counted = True
        """Whether it is looked at."""
        self.num_replays = 0
        """Of the last call: CUDA graphs, whose content `work` does not see."""
        self.event_us: float | None = None
        """Of the last call, where it was timed."""
        self.returned = ""
        """Of the last call: the type that forward returned."""
        self.kept: list[Any] = []
        """Outputs stay alive, so that no later allocation finds an answer in freed memory."""
        self.model: Any = None
        tensor: Any = torch.Tensor
        tensor.__array__ = _refuse_array  # numpy works out of torch's sight
        tensor.__repr__ = _outline

    def view(self, memory: Any, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
        """A tensor that lies in the shared memory."""
        return _tensor(memory, dtype, shape, offset)

    def making(self) -> AbstractContextManager[Any]:
        """Within: what a constructor makes is made where the inputs are."""
        return nullcontext()

    def place(self, model: Any) -> Any:
        """The model where its inputs are."""
        return model

    def prepare(self) -> None:
        """Import, construct with the reference's parameters, load them. Where the order in which
        they were made says otherwise than the names, constructs once more with its own."""
        module = _import(self.request["code"], self.file)
        state = {name: self.tensors[index] for name, index in self.request["state"]}
        values = Initial(state, order=self.request.get("order", []))
        if not self._construct(module, state, values):
            self._construct(module, state, Initial({}, order=[]))

    def _construct(
        self, module: types.ModuleType, state: dict[str, torch.Tensor], values: Initial
    ) -> bool:
        """Answers whether names and order agree."""
        self.stage = "init"
        arguments = self._decode(self.request["init"])
        with values.applied(), self.making():
            model = construct(getattr(module, self.request["entry_point"]), arguments)
        taken = values.names_in(model)
        self.model = self._cast(self.place(model))
        self.stage = "load"
        hook = getattr(self.model, "load_reference", None)
        with torch.no_grad():
            if callable(hook):
                hook(state)
                return True
            targets = _targets(self.model.state_dict(), state, taken, values.sources)
            reached = {source for name, source in taken.items() if targets.get(name) == source}
            if not reached.issuperset(taken.values()):
                return False
            has_all = _load_state(self.model, state, targets)
        self.has_derived = not has_all and not values.is_exhausted
        return True

    def _cast(self, model: Any) -> Any:
        """A reference in the problem's precision, as the oracle has it; a candidate as it is."""
        dtype = DTYPES.get(self.request.get("precision", "fp32"))
        is_cast = self.request.get("cast") and dtype is not None
        return model.to(dtype) if is_cast and isinstance(model, torch.nn.Module) else model

    def call(self, number: int, *, slots: list[int]) -> list[Any]:
        """One forward pass on input set `number`; outputs go to the slots. Returns their forms."""
        self._begin("call")
        inputs = self._decode(self.request["sets"][number])
        counter = OpCounter()
        with torch.no_grad(), counter if self.is_counted else nullcontext():
            result = self.model(*inputs)
        self.work = counter.work
        self.kept.append(result)
        return self._deliver(result, slots=slots)

    def _begin(self, stage: str) -> None:
        """Forgets what was of the call before."""
        self.stage, self.returned, self.event_us = stage, "", None
        self.work, self.num_launches, self.num_replays = {}, 0, 0

    def _deliver(self, result: Any, *, slots: list[int]) -> list[Any]:
        """What forward returned to the slots, where it is of their form: a conversion here would
        not be counted. Returns the forms. Raises what a launch failed with."""
        self.returned = type(result).__name__
        if self.failed_launch is not None:
            raise self.failed_launch
        outputs = _flatten(result)
        for output, slot in zip(outputs, slots, strict=False):
            target = self.tensors[slot]
            if self._kind(output) in ("Tensor", "Parameter") and _same_form(output, target):
                _copy(target, _detach(output))
        return [[self._kind(output), *_form(output)] for output in outputs]

    def _kind(self, output: Any) -> str:
        """The type of an output, and its device where that is not the inputs'."""
        name = type(output).__name__
        if not isinstance(output, torch.Tensor):
            return name
        if type(output) not in (torch.Tensor, torch.nn.Parameter):
            return f"subclass of Tensor ({name})"  # it may bring methods of its own
        if not self.tensors:
            return name
        if output.layout is not torch.strided:
            return "sparse tensor"
        device = output.device.type
        return name if device == self.tensors[0].device.type else f"{name} on {device}"

    def launched(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Told of every launch. Compiles what is new in it; answers whether to run it."""
        self.num_launches += 1
        if self.is_ghost:
            return False
        self._compile(function, args, kwargs)
        return True

    def settled(
        self, grid: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A grid that is asked for last before the kernel runs. It is the candidate's code, and so
        may have changed what the kernel's names stand for: what they do now is compiled too."""

        def ask(meta: dict[str, Any]) -> tuple[Any, ...]:
            shape: Any = grid(meta) if callable(grid) else grid
            shape = tuple(shape)
            self._compile(function, args, kwargs)
            return shape

        return ask

    def _compile(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = function.fn.__name__
        if (odd := next(_not_plain([*args, *kwargs.values()]), None)) is not None:
            self.compile_line = function.fn.__code__.co_firstlineno
            words = f"{name}: {odd} is no argument for a kernel; pass tensors and numbers"
            raise KernelRefused(words)
        try:
            self.compiler.compile_launch(function, args, kwargs, depth=self.request["depth"])
        except self.refused as error:
            self.compile_line = getattr(error, "line", None) or function.fn.__code__.co_firstlineno
            raise KernelRefused(f"{name}: {error}") from None
        self.compiled.add(name)

    def _decode(self, tree: Any) -> Any:
        kind, value = tree
        if kind == "tensor":
            return self.tensors[value]
        if kind == "dict":
            return {key: self._decode(item) for key, item in value}
        if kind in ("list", "tuple"):
            items = [self._decode(item) for item in value]
            return items if kind == "list" else tuple(items)
        return getattr(torch, value) if kind == "dtype" else value


def _not_plain(values: Any) -> Iterator[str]:
    """Of launch arguments: what could be one thing to the compiler and another when it runs."""
    for value in values:
        kinds = (*PLAIN, tl.dtype, TensorDescriptor, interpreter.InterpretedFunction)
        if type(value) in (tuple, list):  # a class derived from one may bring anything
            yield from _not_plain(value)
        elif type(value) is tl.constexpr:
            yield from _not_plain([value.value])
        elif type(value) not in (*kinds, *np.sctypeDict.values()):
            yield type(value).__name__


def _refuse_array(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    raise TypeError("numpy is for constants: compute with tensors in a kernel")


def _outline(tensor: torch.Tensor) -> str:
    """A tensor in words. Torch writes all numbers, with its modes off: who parsed them could
    compute in Python, and no counter would have seen a read."""
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype})"


def _import(code: str, file: str) -> types.ModuleType:
    """Runs the candidate as a module of a real file: Triton reads kernel sources from it."""
    with open(file, "w") as out:
        out.write(code)
    module = types.ModuleType("candidate")
    module.__file__ = file
    sys.modules["candidate"] = module
    exec(compile(code, file, "exec"), module.__dict__)
    return module


def _targets(
    own: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    taken: dict[str, str],
    used: set[str],
) -> dict[str, str]:
    """Which of the reference's tensors goes to which of the model's: by name, else by whose values
    it was constructed with, else by order among those of its shape that nothing was (`used`): what
    was, may lie there packed."""
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


def _load_state(model: Any, state: dict[str, torch.Tensor], targets: dict[str, str]) -> bool:
    """The reference's parameters into the candidate. Answers whether that reached every tensor of
    it; others were computed in `__init__`."""
    own = model.state_dict()
    for name, source in targets.items():
        own[name].copy_(state[source])
    plain = (value for module in model.modules() for value in vars(module).values())
    is_plain = any(isinstance(value, torch.Tensor) for value in plain)
    return len(targets) == len(own) and not is_plain


def _flatten(result: Any) -> list[Any]:
    """A subclass of list or tuple is no sequence: its `__iter__` would compute after the counters
    and clocks."""
    if type(result) in (list, tuple):
        return [leaf for item in result for leaf in _flatten(item)]
    return [result]


def _form(output: Any) -> tuple[str, list[int]]:
    if type(output) not in (torch.Tensor, torch.nn.Parameter):
        return "", []
    return str(output.dtype).removeprefix("torch."), list(output.shape)


def _same_form(output: torch.Tensor, target: torch.Tensor) -> bool:
    return output.shape == target.shape and output.dtype == target.dtype


def _tensor(memory: mmap.mmap, dtype: str, shape: list[int], offset: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(shape)


def def_line(kernel: Any) -> int:
    """Of a kernel's file, where its `src` begins: behind the decorators. Triton before 3.7 has no
    name for it."""
    first = kernel.starting_line_number
    lines = enumerate(kernel.raw_src)
    return next((first + i for i, text in lines if text.lstrip().startswith("def ")), first)
