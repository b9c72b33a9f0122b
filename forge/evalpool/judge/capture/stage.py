"""Shared by all captures of a process: the mode of fake tensors, the driver, the compiler.

Made once, in the zygote before any fork; each child begins its capture with the request's card.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import triton.testing
from torch._subclasses.fake_tensor import FakeTensor

from forge.evalpool.judge.capture.failures import Unsupported
from forge.evalpool.judge.capture.launches import CaptureDriver, Compiler
from forge.evalpool.judge.capture.pretence import card as cards
from forge.evalpool.judge.capture.pretence import inductor
from forge.evalpool.judge.capture.pretence.card import deep_copy, shallow_copy
from forge.evalpool.judge.capture.tuning import patches

if TYPE_CHECKING:
    from forge.evalpool.judge.capture.pretence.card import Card
    from forge.evalpool.judge.capture.recorder import Recorder
    from forge.evalpool.judge.capture.tuning import Tuning


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


def _hash(tensor: object, file: str) -> int:
    if sys._getframe(2).f_code.co_filename == file:
        raise Unsupported(KEY_WORDS)
    return id(tensor)


def refusing(words: str) -> Any:
    """A function that raises Unsupported, in place of another one."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise Unsupported(words)

    return refuse


class Stage:
    """The process as a place for captures."""

    _instance: ClassVar[Stage | None] = None

    def __init__(self) -> None:
        self.fake: Any = cards.make_fake_mode()
        self.compiler = Compiler()
        self._pretence = cards.Pretence()

    @classmethod
    def get(cls) -> Stage:
        """The one of this process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def begin(
        self, card: Card, recorder: Recorder, tuning: Tuning, *, is_pure: bool = False
    ) -> None:
        """From now on torch and Triton answer as with this card, and the recorder hears. With
        `is_pure` the candidate may use no tensor as a key, which would ask which one it is."""
        self.end()
        cards.ensure_device_guard()
        self._pretence.begin(card)
        self._pretence.set(FakeTensor, "data_ptr", lambda tensor: recorder.address(tensor))
        self._pretence.set(FakeTensor, "__copy__", shallow_copy)
        self._pretence.set(FakeTensor, "__deepcopy__", deep_copy)
        self._pretence.set(FakeTensor, "tolist", lambda tensor: recorder.fetch(tensor).tolist())
        if is_pure:
            self._pretence.set(FakeTensor, "__hash__", lambda tensor: _hash(tensor, recorder.file))
        for name in STREAMS:
            self._pretence.set(torch.cuda, name, refusing(STREAM_WORDS))
        for name in ("do_bench", "do_bench_cudagraph"):
            self._pretence.set(triton.testing, name, refusing(TIME_WORDS))
        for owner, name, value in patches(tuning):
            self._pretence.set(owner, name, value)
        self.compiler.begin(recorder, CaptureDriver(card))

    def prepare_for(self, code: str) -> None:
        """Makes ready what a source names and few others need."""
        for owner, name, value in inductor.patches(code):
            self._pretence.set(owner, name, value)
        if CPP in code:
            builder: Any = importlib.import_module(f"torch.utils.{CPP}")
            for name in ("load", "load_inline"):
                self._pretence.set(builder, name, refusing(CPP_WORDS))

    def end(self) -> None:
        """Torch and Triton answer as they did before."""
        self._pretence.undo()
        torch._C._set_only_lift_cpu_tensors(False)
        self.compiler.end()
