"""The judge's side of an examination: asks an examiner of its own for each problem, and puts what
comes back, or how it ended, into an `Examination`.

Called by `app.py` for POST /examine. Promise: whatever a problem's file does (ends its process,
loops, fills the memory), the answer is a flag and comes before the deadline.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import clean, exit_in_words, is_out_of_memory, without_paths
from forge.evalpool.judge.children.spawner import Spawner
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.trial.references import body_of
from forge.evalpool.site_packages import with_advice
from forge.process.gpu_locks import GpuLease
from forge.records.examination import Examination, Flag
from forge.records.problem import MAX_SHAPES, ReferenceModule

MAX_WORDS = 300
MAX_OUTPUTS = 64
MAX_STEPS = 64
"""FOUND frames; an honest study has fewer than ten."""
LEASE_TIMEOUT_S = 300.0
VARYING_STEPS = ("inputs", "parameters")
"""They have a budget of their own: what a judge never does for a candidate."""


class _Report:
    """Content of an examiner's answers so far."""

    def __init__(self) -> None:
        self.flags: dict[Flag, str] = {}
        self.facts: dict[str, Any] = {}
        """Fields of an examination."""
        self.num_unchecked = self.num_steps = 0

    def add(self, body: dict[str, Any]) -> None:
        """A FOUND frame; its content is the problem's. Raises FrameError for rubbish."""
        facts, flags = body.get("facts"), body.get("flags")
        if not isinstance(facts, dict) or not isinstance(flags, dict):
            raise frames.FrameError("no facts")
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise frames.FrameError("it does not come to an end")
        for name, words in flags.items():
            if name not in list(Flag):
                raise frames.FrameError("no such flag")
            self.flags[Flag(name)] = _short(str(words))
        for name, most in (("outputs", MAX_OUTPUTS), ("shapes", MAX_SHAPES)):
            if isinstance(found := facts.get(name), list):
                self.facts[name] = tuple(_short(str(one)) for one in found[:most])
        seconds = facts.get("forward_s")
        if isinstance(seconds, int | float) and abs(seconds) <= sys.float_info.max:
            self.facts["forward_s"] = float(seconds)
        self.num_unchecked += frames.count(facts.get("num_unchecked"))


class Examiners:
    """Examines problems, one child each. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, table: JudgeTable, gpu_uuid: str | None = None) -> None:
        self._spawner = spawner
        self._table = table
        self._device = "cpu" if gpu_uuid is None else "cuda"
        self._lease = None if gpu_uuid is None else GpuLease(gpu_uuid)
        self._limit_s = table.compile_timeout_s + table.correct_timeout_s

    def examine(self, problem: ReferenceModule, *, lists_sets: bool = False) -> Examination:
        """Blocks until it is known, at most twice a judge's deadline; on a GPU beside others, never
        beside one that is timed. With `lists_sets`, only the names of its input sets. Raises
        ZygoteGone or Stalled."""
        if self._lease is None:
            return self._examine(problem, lists_sets=lists_sets)
        with self._lease.shared(timeout_s=LEASE_TIMEOUT_S):
            return self._examine(problem, lists_sets=lists_sets)

    def _examine(self, problem: ReferenceModule, *, lists_sets: bool) -> Examination:
        child = self._spawner.spawn(role="examiner", source=problem.source)
        report, is_ended = _Report(), False
        try:
            self._listen(child.sock, problem, report, lists_sets=lists_sets)
        except frames.DeadlinePassed:
            self._note_silence(report)
        except frames.FrameError:
            report.flags[Flag.CRASH] = "something else than the examiner wrote on its channel"
        except frames.PeerGone:
            is_ended = True
            report.flags[Flag.CRASH] = exit_in_words(self._spawner.ended(child).status, who="it")
        finally:
            if not is_ended:
                self._spawner.end(child)
        return Examination(
            problem_id=problem.problem_id, flags=report.flags, num_unchecked=report.num_unchecked,
            **report.facts,
        )  # fmt: skip

    def _listen(
        self, sock: socket.socket, problem: ReferenceModule, report: _Report, *, lists_sets: bool
    ) -> None:
        body = {
            "lists_sets": lists_sets,
            **body_of(problem),
            "device": self._device,
            **Tf32.of(self._table.tf32, is_other=False).request,
            "num_sets": self._table.num_inputs,
            "timeout_s": self._limit_s,
            "budget_s": 1.5 * self._limit_s,
            "plain": False,
            "max_bytes": self._table.memory_bytes if self._lease is None else sys.maxsize,
        }
        started = time.monotonic()
        frames.send(sock, Kind.EXAMINE, body)
        while True:
            is_varying = report.num_steps >= 4
            deadline = started + self._limit_s * (2 if is_varying else 1)
            expected = (Kind.FOUND, Kind.FAILED)
            answer = frames.receive(sock, deadline=deadline, expected=expected)
            if answer.kind is Kind.FAILED:
                return _note_failure(report, answer.body)
            report.add(answer.body)
            if answer.body.get("is_last"):
                return None

    def _note_silence(self, report: _Report) -> None:
        if report.num_steps >= 4:  # it is judged in time; only the rest of the study is not
            report.num_unchecked += 1
            return
        limit = f"{self._limit_s:.0f} s"
        words = f"inputs and reference take longer than {limit}, for which a judge waits"
        if report.num_steps < 2:
            doing = "its first forward pass" if report.num_steps else "loading"
            words = f"{doing} does not end within {limit}"
        report.flags[Flag.SLOW] = words


def _note_failure(report: _Report, body: dict[str, Any]) -> None:
    kind, message, line = body.get("type"), body.get("message"), body.get("line")
    text = f"{kind}: {message}" if message else str(kind)
    if is_out_of_memory(text):
        flag = Flag.OUT_OF_MEMORY
        text = "a tensor does not fit into the memory of a judge"
    elif kind == "Unjudgeable":
        flag, text = Flag.UNSUPPORTED, str(message)
    else:
        flag = Flag.DOES_NOT_RUN
    if str(body.get("step")) in VARYING_STEPS and flag is not Flag.UNSUPPORTED:
        report.num_unchecked += 1  # it can be judged; on other inputs it raises
        return
    where = f"line {line}: " if type(line) is int else ""
    report.flags[flag] = with_advice(_short(f"{where}{text}"))


def _short(text: str) -> str:
    return clean(without_paths(text), limit=MAX_WORDS).replace("\n", " ")
