"""Shared by all captures of a process: the mode of fake tensors, the driver, the compiler.

Made once, in the zygote before any fork; each child begins its capture with the request's card.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from forge.evalpool.judge.capture.failures import Unsupported
from forge.evalpool.judge.capture.launches import CaptureDriver, Compiler
from forge.evalpool.judge.capture.pretence import card as cards
from forge.evalpool.judge.capture.pretence import inductor
from forge.evalpool.judge.capture.pretence.card import deep_copy, shallow_copy
from forge.evalpool.judge.capture.pretence.streams import Stream
from forge.evalpool.judge.capture.tuning import patches

if TYPE_CHECKING:
    from pathlib import Path

    from forge.evalpool.judge.capture.pretence.card import Card
    from forge.evalpool.judge.capture.recorder import Recorder
    from forge.evalpool.judge.capture.tuning import Tuning


CPP = "cpp_extension"
"""Module of torch that compiles C++ and CUDA C++, with the compilers of this machine."""


def refuse_cpp(*args: object, **kwargs: object) -> None:
    """Stands for the functions of that module. Raises Unsupported."""
    raise Unsupported("CUDA C++ is not judged; write a Triton kernel")


GRAPHS = ("ExternalStream", "CUDAGraph", "graph", "make_graphed_callables")
"""Names of `torch.cuda` that make graphs, or streams of an address."""


def refuse_streams(*args: object, **kwargs: object) -> NoReturn:
    """Stands for what makes a stream or a graph. Raises Unsupported."""
    raise Unsupported(
        "a program that uses CUDA streams or graphs cannot be judged: launch on the current stream;"
        " kernels are timed in a graph of the judge's own"
    )


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

    def begin(self, card: Card, recorder: Recorder, tuning: Tuning) -> None:
        """From now on torch and Triton answer as with this card, and the recorder hears."""
        self.end()
        cards.ensure_device_guard()
        self._pretence.begin(card)
        self._pretence.set(FakeTensor, "data_ptr", lambda tensor: recorder.address(tensor))
        self._pretence.set(FakeTensor, "__copy__", shallow_copy)
        self._pretence.set(FakeTensor, "__deepcopy__", deep_copy)
        self._pretence.set(FakeTensor, "tolist", lambda tensor: recorder.to_list(tensor))
        self._pretence.set(Stream, "__new__", refuse_streams)
        for name in GRAPHS:
            self._pretence.set(torch.cuda, name, refuse_streams)
        for owner, name, value in patches(tuning):
            self._pretence.set(owner, name, value)
        self.compiler.begin(recorder, CaptureDriver(card))

    def prepare_for(self, code: str, *, tuning: Tuning, folder: Path) -> None:
        """Makes ready what a source names and few others need."""
        for owner, name, value in inductor.patches(code, tuning.choose, folder=folder):
            self._pretence.set(owner, name, value)
        if CPP in code:
            builder: Any = importlib.import_module(f"torch.utils.{CPP}")
            for name in ("load", "load_inline"):
                self._pretence.set(builder, name, refuse_cpp)

    def end(self) -> None:
        """Torch and Triton answer as they did before."""
        self._pretence.undo()
        self.compiler.end()
