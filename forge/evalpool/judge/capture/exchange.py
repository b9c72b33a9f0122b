# pyright: strict
"""Exchanges programs, questions and answers between the judge and a capture child.

    judge ── CANDIDATE ─▶ child ── ASK (program until now) ─▶ judge ── ANSWER ─▶ child …
                                └── DONE (program) | FAILED ─▶

A program's bytes follow their frame, which says how many there are. Each question (values that the
host reads) carries the program as far as it is known, so that the judge needs nothing else. Imports
no torch.
"""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program.format import Program, Scalar
from forge.evalpool.judge.program.questions import MAX_VALUES

# --- errors that end a capture, each with the line of the candidate's source


MAX_MESSAGE_CHARACTERS = 1000


class Unsupported(Exception):
    """The candidate does something that a program cannot express, or more than its format allows.
    The message says what to write instead."""


class CaptureFailed(Exception):
    """A capture without a program: its stage (`import`, `init`, `load`, `call` or `compile`), the
    name of the exception's class (`Unsupported` is ours), its text, and the
    line of the candidate's source, None where unknown."""

    def __init__(self, *, stage: str, type: str, message: str, line: int | None) -> None:
        super().__init__(f"{stage}: line {line}: {type}: {message}")
        self.stage, self.type, self.line = stage, type, line
        self.message = message[:MAX_MESSAGE_CHARACTERS]

    def body(self) -> dict[str, Any]:
        """Body of the FAILED frame."""
        return {name: getattr(self, name) for name in ("stage", "type", "message", "line")}


def line_of(error: BaseException, file: str) -> int | None:
    """Innermost line of `file` in an error's traceback, or that of a syntax error."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [
        number
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return lines[-1] if lines else None


def current_line(file: str) -> int:
    """Innermost line of `file` that is being executed; 0 if there is none."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return 0


MAX_PROGRAM_BYTES = 64 << 20
"""More than the bounds of the format add up to; a longer program is refused unread."""


class Answer(NamedTuple):
    """One message of a capture child."""

    kind: Kind
    """DONE, ASK or FAILED."""
    body: dict[str, Any]
    """For DONE the notes of `session.capture`; for FAILED `CaptureFailed.body`."""
    program: bytes = b""
    """Bytes of the program for DONE and ASK; unchecked."""


def send_program(sock: socket.socket, kind: Kind, body: dict[str, Any], data: bytes) -> None:
    frames.send(sock, kind, {"num_bytes": len(data), "body": body}, tail=data)


def receive(sock: socket.socket, *, deadline: frames.Deadline) -> Answer:
    """The next message of a capture child, complete before `deadline`. Raises FrameError also for a
    program that is too long, PeerGone and DeadlinePassed."""
    expected = (Kind.DONE, Kind.ASK, Kind.FAILED)
    frame = frames.receive(sock, deadline=deadline, expected=expected)
    if frame.kind is Kind.FAILED:
        return Answer(frame.kind, frame.body)
    size, body = frames.count(frame.body.get("num_bytes")), frame.body.get("body")
    if not 0 < size <= MAX_PROGRAM_BYTES or not isinstance(body, dict):
        raise frames.FrameError(f"no program of at most {MAX_PROGRAM_BYTES} bytes")
    data = frames.read(sock, size, deadline=deadline)
    return Answer(frame.kind, cast("dict[str, Any]", body), data)


def answer(sock: socket.socket, value: Any) -> None:
    """The judge's answer to ASK: a list of scalars. None says that the judge does not know them:
    the candidate is unsupported."""
    frames.send(sock, Kind.ANSWER, {"answer": value})


Ask: TypeAlias = "Callable[[Program], list[Any]]"
"""Puts a question to the judge: a number for each output of the program until now, tensors of one
element."""


class Asking:
    """The questions of one capture, counted."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self.num_values = 0
        """Values read since `num_values` was last reset."""
        self.is_repeating = False
        """True while the answers of the first call serve for a call that is not the program; what
        it asks beside is 1."""
        self.negated = -1
        """Place of a truth value that is another one then."""
        self._answered: list[tuple[list[str], list[Scalar]]] = []
        self._num_asked = self._num_truths = 0
        self.prefix: Any = None
        """Makes the program until now from the numbers of its outputs; set by the session."""

    def begin_call(self) -> None:
        self.num_values = self._num_asked = self._num_truths = 0

    def values(self, tensors: list[int], *, dtypes: list[str]) -> list[Scalar]:
        """Values of tensors with one element each. Raises Unsupported without a judge that answers,
        or past the limit."""
        self.num_values += len(tensors)
        if self.num_values > MAX_VALUES:
            raise Unsupported(f"more than {MAX_VALUES} values of tensors read on the host")
        if self._ask is None:
            raise Unsupported(
                "a value of a tensor read on the host: compute on the device, without .item(),"
                " bool() or .cpu()"
            )
        number, self._num_asked = self._num_asked, self._num_asked + 1
        if self.is_repeating:
            before, found = self._answered[number] if number < len(self._answered) else ([], [])
            found = found if before == dtypes else [_typed(1, dtype) for dtype in dtypes]
            return [self._shown(answer) for answer in found]
        answers = self._ask(self.prefix(outputs=tensors))
        found = [_typed(answer, dtype) for answer, dtype in zip(answers, dtypes, strict=True)]
        self._answered[number:] = [(dtypes, found)]
        return found

    def _shown(self, answer: Scalar) -> Scalar:
        if not isinstance(answer, bool):
            return answer
        self._num_truths += 1
        return answer != (self._num_truths - 1 == self.negated)


def _typed(answer: Any, dtype: str) -> Scalar:
    if dtype == "bool":
        return bool(answer)
    return int(answer) if "int" in dtype else float(answer)
