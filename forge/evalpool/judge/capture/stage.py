"""Shared by all captures of a process: the mode of fake tensors, the driver, the compiler.

Made once, in the zygote before any fork; each child begins its capture with the request's card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch._subclasses.fake_tensor import FakeTensor

from forge.evalpool.judge.capture import card as cards
from forge.evalpool.judge.capture.launches import CaptureDriver, Compiler

if TYPE_CHECKING:
    from forge.evalpool.judge.capture.card import Card
    from forge.evalpool.judge.capture.recorder import Recorder


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

    def begin(self, card: Card, recorder: Recorder) -> None:
        """From now on torch and Triton answer as with this card, and the recorder hears."""
        self.end()
        cards.ensure_device_guard()
        self._pretence.begin(card)
        self._pretence.set(FakeTensor, "data_ptr", lambda tensor: recorder.address(tensor))
        self.compiler.begin(recorder, CaptureDriver(card))

    def end(self) -> None:
        """Torch and Triton answer as they did before."""
        self._pretence.undo()
        self.compiler.end()
