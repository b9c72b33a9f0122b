"""Runs a probe in a child process with a deadline, and returns what it reported.

A probe that hangs, crashes or cannot start is a result like any other: nothing is raised.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ForgeError
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.logtail import read_last_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROBES = "forge.commands.doctor.probes"
LOG_LINES = 40
"""Lines of a probe's log that fixes are deduced from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The report of a probe."""

    answers: Sequence[Mapping[str, Any]] = ()
    """Its lines, in order."""
    fault: str = ""
    """The reason why it did not end well, with what it was doing; empty if it did."""
    is_late: bool = False
    """True if the deadline ended it."""
    log: str = ""
    """Last lines of its output."""

    def get(self, key: str) -> Any:
        """The last reported value of a key, or None."""
        return last_value(self.answers, key)


def last_value(answers: Sequence[Mapping[str, Any]], key: str) -> Any:
    """The last value of a key in a probe's lines, or None."""
    return next((answer[key] for answer in reversed(answers) if key in answer), None)


async def run_probe(
    kind: str,
    *,
    label: str,
    folder: Path,
    config: Mapping[str, Any],
    deadline_s: float,
    python: str = "",
    gpus: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a module of the room `probes`.

    Args:
        label: file name of its log and answer in `folder`, unique in it.
        python: interpreter; empty for this one.
        gpus: UUIDs of the GPUs that it may see.
        extra: further variables of its environment.
    """
    answer_path, log_path = folder / f"{label}.answer", folder / f"{label}.log"
    spec = ChildSpec(
        name=label,
        argv=(python or sys.executable, "-m", f"{PROBES}.{kind}"),
        log_path=log_path,
        env=child_env(threads=1, gpus=gpus, extra=extra),
        socket_path=None,
        config={**config, "answer_path": str(answer_path)},
        stop_grace_s=0.0,
    )
    ended, fault, is_late = "", "", False
    try:
        async with open_child(spec) as child:
            with anyio.move_on_after(deadline_s) as scope:
                ended = await child.wait()
            is_late = scope.cancelled_caught
    except ForgeError as error:
        fault = str(error).splitlines()[0]
    answers, log = _read_answers(answer_path), read_last_lines(log_path, num_lines=LOG_LINES)
    if not fault and ended != "exit 0":
        fault = _describe(ended, answers, log, deadline_s=deadline_s)
    return Outcome(answers=answers, fault=fault, is_late=is_late, log=log)


def _describe(
    ended: str, answers: Sequence[Mapping[str, Any]], log: str, *, deadline_s: float
) -> str:
    """The probe's own error, or its end, with what it was doing."""
    said = next((answer for answer in answers if "error" in answer), None)
    if said is not None:
        return f"{said['error']} (while {said['doing'] or 'starting'})"
    doing = last_value(answers, "doing") or "starting"
    how = ended or f"no end within {deadline_s:.0f} s"
    last = log.splitlines()[-1:] if ended else []
    return ": ".join([f"{how} while {doing}", *last])


def _read_answers(path: Path) -> list[Mapping[str, Any]]:
    """The lines; a last one that a crash cut off is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
