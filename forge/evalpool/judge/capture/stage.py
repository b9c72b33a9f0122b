"""The process as a place for captures: mode of fake tensors, Triton's active driver and compiler,
what torch and Triton answer. Launches become nodes, kernels TTIR.

Made once, in the zygote before any fork; each child begins its capture with the request's card.
`triton.compile` is replaced, so that a `JITFunction`, an autotuner and code that calls the compiler
itself all end here. Nothing is compiled to a binary.
"""

from __future__ import annotations

import hashlib
import importlib
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import triton
import triton.compiler
import triton.compiler.compiler
import triton.testing
from torch._subclasses.fake_tensor import FakeTensor
from triton.backends.driver import DriverBase
from triton.compiler.compiler import ASTSource
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import _allocation
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError
from triton.tools.tensor_descriptor import TensorDescriptor

from forge.evalpool.judge.capture import pretence
from forge.evalpool.judge.capture.exchange import Unsupported
from forge.evalpool.judge.capture.lowering import Lowering
from forge.evalpool.judge.capture.recorder import Recorder
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.format import Alternative, Choice, Node, Op
from forge.evalpool.judge.program.walk import tensors_of


class CaptureDriver(DriverBase):
    """Answers as the driver of the target's card."""

    def __init__(self, card: pretence.Card) -> None:
        self.card = card
        self.utils = SimpleNamespace(get_device_properties=lambda device: card.triton_properties())
        self.get_device_capability = lambda device=0: card.capability

    @classmethod
    def is_active(cls) -> Any:
        return True

    def get_current_target(self) -> Any:
        return self.card.triton_target()

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return torch.device("cuda", 0)

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty  # no launcher is compiled here

    def get_benchmarker(self) -> Any:
        return triton.testing.do_bench  # which the capture refuses


class CapturedKernel:
    """Stands for Triton's CompiledKernel."""

    def __init__(self, source: Any, kernel: form.Kernel, recorder: Recorder) -> None:
        self.src = source
        self.name = kernel.name
        self.function = self
        self.packed_metadata = ()
        self.number = recorder.kernel(kernel)
        self._recorder = recorder
        self._is_allocating = "tt.make_tensor_descriptor" in kernel.ttir
        """True if its launches need memory for descriptors, which the host must allocate."""

    def __getattr__(self, name: str) -> Any:
        """Raises Unsupported: nothing is compiled here, and a verdict holds for any compiler."""
        raise Unsupported(f"{name} of a compiled kernel: choose the grid without it")

    def result(self) -> CapturedKernel:
        """Result of a compilation in the background: done at once."""
        return self

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        """None: no hook of a launch is called."""

    def run(self, x: Any, y: Any, z: Any, *rest: Any) -> None:
        """Triton's launcher: before the arguments come the stream, the function, the metadata of
        kernel and launch, and two hooks. Records a launch; an empty grid launches nothing, and a
        float is no size, as in Triton."""
        args, sizes = rest[6:], [operator.index(size) for size in (x, y, z)]
        if any(size < 0 for size in sizes):
            raise ValueError(f"grid {tuple(sizes)}: no size may be negative")
        if any(size > limit for size, limit in zip(sizes, limits.MAX_GRID, strict=True)):
            most = limits.MAX_GRID
            error = f"Triton Error [CUDA]: invalid argument: a card launches grids up to {most}"
            raise RuntimeError(f"{error}, not {tuple(sizes)}")
        pairs = zip(self._kinds(len(args)), args, strict=True)
        found = tuple(one for kind, arg in pairs for one in self._argument(kind, arg))
        if 0 in sizes:
            return
        if self._is_allocating and _allocation._allocator.get() is _allocation._NULL_ALLOCATOR:
            _allocation._NULL_ALLOCATOR(0, 0, None)  # raises what Triton's launcher would
        recorder = self._recorder
        node = form.Launch(
            kernel=self.number,
            grid=(sizes[0], sizes[1], sizes[2]),
            arguments=found,
            line=recorder.line(),
        )
        recorder.add(node)

    def _kinds(self, count: int) -> list[Any]:
        """Types of the arguments of a launch, which may leave out those declared constant."""
        kinds = list(self.src.signature.values())
        if len(kinds) == count:
            return kinds
        pairs = zip(kinds, self.src.fn.params, strict=True)
        kinds = [kind for kind, parameter in pairs if not parameter.is_constexpr]
        if len(kinds) != count:
            raise TypeError(f"{self.name} takes {len(kinds)} arguments, not {count}")
        return kinds

    def _argument(self, kind: Any, value: Any) -> Iterator[form.LaunchArgument]:
        if isinstance(kind, tuple | list):
            for one_kind, one in zip(kind, value, strict=True):
                yield from self._argument(one_kind, one)
        elif kind == "constexpr":
            return
        elif kind.startswith("tensordesc"):
            yield from _descriptor(self._recorder, value)
        elif kind.startswith("*"):
            yield _pointer(self._recorder, value)
        else:
            yield _number(kind, value)


def _pointer(recorder: Recorder, value: Any) -> form.TensorUse:
    value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
    if isinstance(value, FakeTensor):
        return form.TensorUse(tensor=recorder.tensor(value))
    if isinstance(value, torch.Tensor):
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    raise Unsupported(f"a {type(value).__name__} as a pointer: pass a tensor")


def _number(kind: str, value: Any) -> form.LaunchArgument:
    if hasattr(value, "item") and not isinstance(value, torch.Tensor):
        value = value.item()  # NumPy's scalars
    if kind.startswith(("fp", "bf", "f")):
        return float(value)
    return int(value)


def _descriptor(recorder: Recorder, value: Any) -> Iterator[form.LaunchArgument]:
    if not isinstance(value, TensorDescriptor):
        raise Unsupported(f"a {type(value).__name__} as a tensor descriptor")
    shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.strides))
    yield form.Descriptor(
        tensor=_pointer(recorder, value.base).tensor,
        shape=shape,
        strides=strides,
        block_shape=tuple(map(int, value.block_shape)),
        padding=getattr(value, "padding", "zero"),
    )
    yield from shape
    yield from strides


CPP = "cpp_extension"
"""Module of torch that compiles C++ and CUDA C++, with the compilers of this machine."""
CPP_WORDS = "CUDA C++ is not judged; write a Triton kernel"
STREAMS = (
    *("Stream", "Event", "stream", "StreamContext", "current_stream", "default_stream"),
    *("set_stream", "ExternalStream", "CUDAGraph", "graph", "make_graphed_callables"),
)
"""Names of `torch.cuda` that order work, or time it."""
STREAM_WORDS = (
    "a program that uses CUDA streams, events or graphs cannot be judged: launch on the current "
    "stream; kernels are timed in a graph of the judge's own"
)
KEY_WORDS = "a tensor is a key, or in a set: which tensors are the same is the caller's"
TIME_WORDS = "do_bench: no kernel runs while host code does; let @triton.autotune choose"


def refusing(words: str) -> Any:
    """A function that raises Unsupported, in place of another one."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise Unsupported(words)

    return refuse


class Stage:
    """The process as a place for captures."""

    _instance: ClassVar[Stage | None] = None

    def __init__(self) -> None:
        self.fake: Any = pretence.make_fake_mode()
        self.lowering = Lowering()
        self._recorder: Recorder | None = None
        self._pretence = pretence.Pretence()
        compiler, modules = triton.compiler.compiler.compile, list(sys.modules.values())
        named = ((one, getattr(one, "__dict__", {})) for one in modules)  # some are None
        self._holders = [one for one, names in named if names.get("compile") is compiler]
        """Modules that name the compiler; those imported during a capture take ours from them."""

    @classmethod
    def get(cls) -> Stage:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def begin(
        self, card: pretence.Card, recorder: Recorder, tuning: Tuning, *, is_pure: bool = False
    ) -> None:
        """From now on torch and Triton answer as with this card, and the recorder hears. With
        `is_pure` the candidate may use no tensor as a key, which would ask which one it is."""
        self.end()
        pretence.ensure_device_guard()
        self._pretence.begin(card)
        self._pretence.set(FakeTensor, "data_ptr", lambda tensor: recorder.address(tensor))
        self._pretence.set(FakeTensor, "__copy__", FakeTensor.detach)
        self._pretence.set(FakeTensor, "__deepcopy__", pretence.deep_copy)
        self._pretence.set(FakeTensor, "tolist", lambda tensor: recorder.fetch(tensor).tolist())

        def key(tensor: object) -> int:
            if sys._getframe(1).f_code.co_filename == recorder.file:
                raise Unsupported(KEY_WORDS)
            return id(tensor)

        if is_pure:
            self._pretence.set(FakeTensor, "__hash__", key)
        for name in STREAMS:
            self._pretence.set(torch.cuda, name, refusing(STREAM_WORDS))
        for name in ("do_bench", "do_bench_cudagraph"):
            self._pretence.set(triton.testing, name, refusing(TIME_WORDS))
        for owner, name, value in tuning_patches(tuning):
            self._pretence.set(owner, name, value)
        for module in self._holders:
            self._pretence.set(module, "compile", self.compile)
        self._pretence.set(triton.runtime.driver, "_active", CaptureDriver(card))
        self._recorder = recorder

    def compile(
        self, src: Any, target: Any = None, options: Any = None, **_: Any
    ) -> CapturedKernel:
        """Takes the place of `triton.compile`: the kernel of a source, as TTIR. Raises RuntimeError
        outside of a capture."""
        if self._recorder is None:
            raise RuntimeError("a kernel is launched outside of a capture")
        if not isinstance(src, ASTSource):
            raise Unsupported("a kernel as text of Triton's IR: write it in Triton's language")
        if target is None:
            target = triton.runtime.driver.active.get_current_target()
        kernel = self.lowering.lower(src, target, options, file=self._recorder.file)
        return CapturedKernel(src, kernel, self._recorder)

    def prepare_for(self, code: str) -> None:
        """Makes ready what a source names and few others need."""
        for owner, name, value in pretence.inductor_patches(code):
            self._pretence.set(owner, name, value)
        if CPP in code:
            builder: Any = importlib.import_module(f"torch.utils.{CPP}")
            for name in ("load", "load_inline"):
                self._pretence.set(builder, name, refusing(CPP_WORDS))

    def end(self) -> None:
        """Torch and Triton answer as they did before."""
        self._pretence.undo()
        torch._C._set_only_lift_cpu_tensors(False)
        self._recorder = None


# --- autotuners of a candidate become choices
#
# `triton.autotune` yields every configuration that its pruning leaves as an alternative; the judge
# times them and has the candidate captured again with `choices = {key: label}`, which launches the
# winner alone.


SKIPPED = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
"""With these Triton's autotuner skips a configuration."""
MAX_LABEL_CHARACTERS = 300


class Tuning:
    def __init__(self, recorder: Recorder, answers: dict[str, str]) -> None:
        """`answers`: label of the winner, by key of the choice."""
        self.recorder = recorder
        self.answers = answers
        self._settled: dict[str, str] = {}
        """Labels taken in the current call of forward: only a key's first launch chooses."""

    def begin_call(self, winners: dict[str, str] | None = None) -> None:
        """A new call of forward chooses anew, but for choices with a winner: a program must not
        depend on an earlier call."""
        self._settled = dict(winners or {})

    def run(self, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of `Autotuner.run`: records all configurations as a choice, or launches the one
        that an answer or an earlier launch of this call of forward settles. Those that do not
        compile are skipped."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = list(tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs)
        labels = [str(one)[:MAX_LABEL_CHARACTERS] for one in configs]
        key = _key(tuner, kwargs)
        answer = self._settled.get(key, self.answers.get(key))
        number, is_settled = 0, answer is not None or len(configs) == 1
        if answer in labels:
            number = labels.index(answer)
        elif not is_settled:
            found = self._recorded(tuner, configs, args, kwargs)
            number = next(iter(found))
            made = {labels[at]: nodes for at, nodes in found.items()}
            self._add_choice(key, made, lambda: _restored(tuner, configs[0], kwargs))
        with nullcontext() if is_settled else self.recorder.aside():
            # Again: hooks of later configurations have changed what it prepared.
            result = self._launch(tuner, configs[number], args, kwargs)
        tuner.best_config = configs[number]
        tuner.nargs = None
        return result

    def _recorded(
        self, tuner: Any, configs: list[Any], args: Any, kwargs: Any
    ) -> dict[int, tuple[Node, ...]]:
        """Nodes of each configuration that compiles, by its position."""
        found: dict[int, tuple[Node, ...]] = {}
        failure: BaseException | None = None
        for number, config in enumerate(configs):
            try:
                with self.recorder.aside() as nodes:
                    self._launch(tuner, config, args, kwargs)
            except SKIPPED as error:
                failure = error
                continue
            found[number] = tuple(nodes)
        if not found:
            assert failure is not None
            raise failure
        return found

    def _add_choice(
        self, key: str, found: dict[str, tuple[Node, ...]], restored: Callable[[], list[Any]]
    ) -> None:
        """Adds a choice. `restored` gives the tensors that are restored after each benchmark."""
        self._settled[key] = next(iter(found))
        with self.recorder.aside() as nodes:
            tensors = [one for one in restored() if isinstance(one, torch.Tensor)]
        numbers = [self.recorder.tensor(one) for one in tensors]
        for node in nodes:
            numbers += node.results if isinstance(node, Op) else tensors_of(node)
        kept = tuple(dict.fromkeys(numbers))
        alternatives = tuple(
            Alternative(label=label, nodes=nodes, restored=kept) for label, nodes in found.items()
        )
        self.recorder.add(Choice(alternatives=alternatives, key=key, line=self.recorder.line()))

    def _launch(self, tuner: Any, config: Any, args: Any, kwargs: Any) -> Any:
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def _key(tuner: Any, kwargs: dict[str, Any]) -> str:
    """Name of a tuner's choice for these arguments, as Triton tells them apart."""
    known = {**tuner.nargs, **kwargs}
    known = {name: value for name, value in known.items() if name in tuner.arg_names}
    parts = [known[name] for name in tuner.keys if name in known]
    parts += [str(value.dtype) for value in known.values() if hasattr(value, "dtype")]
    digest = hashlib.sha256(repr(parts).encode(errors="replace")).hexdigest()[:16]
    line = tuner.base_fn.__code__.co_firstlineno
    return f"{tuner.base_fn.__name__[:60]}.{line}.{digest}"


def _restored(tuner: Any, config: Any, kwargs: Any) -> list[Any]:
    """Arguments that the autotuner restores or zeroes around a benchmark run; runs hooks of the
    candidate's own, which write to others."""
    arguments = {**tuner.nargs, **kwargs, **config.all_kwargs()}
    if getattr(tuner, "user_defined_pre_hook", False):
        tuner.pre_hook(arguments)
    if getattr(tuner, "user_defined_post_hook", False):
        tuner.post_hook(arguments, exception=None)
    return [arguments.get(name) for name in (*tuner.reset_to_zero, *tuner.restore_value)]


def tuning_patches(tuning: Tuning) -> Iterator[tuple[Any, str, Any]]:
    """Attributes of Triton to replace: owner, name, value."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return tuning.run(tuner, *args, **kwargs)

    def getitem(tuner: Any, grid: Any) -> Any:
        # Also for a subclass with a `run` of its own, which only caches results.
        return lambda *args, **kwargs: run(tuner, *args, grid=grid, warmup=False, **kwargs)

    yield Autotuner, "run", run
    yield Autotuner, "__getitem__", getitem
