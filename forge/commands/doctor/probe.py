"""Runs a probe in a child process with a deadline, and returns what it reported.

A probe that hangs, crashes or cannot start is a result like any other: nothing is raised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ForgeError
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.logtail import read_ending

if TYPE_CHECKING:
    from pathlib import Path

DEADLINES_S = {"imports": 120.0, "sandbox": 60.0, "kernel": 90.0, "allreduce": 60.0}
"""Maximum time of each probe. On a machine in good order each takes seconds, mostly of imports,
which take a minute on a cold network disk."""
LOG_LINES = 40
"""Lines of a probe's log that fixes are deduced from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The report of a probe."""

    answers: Sequence[Mapping[str, Any]] = ()
    """Its lines, in order."""
    fault: str = ""
    """The reason why it did not end well, with what it was doing; empty if it did."""
    log: str = ""
    """Last lines of its output."""

    def get(self, key: str) -> Any:
        """The last reported value of a key, or None."""
        return next((one[key] for one in reversed(self.answers) if key in one), None)


async def run_probe(
    kind: str,
    folder: Path,
    *,
    label: str = "",
    config: Mapping[str, Any] | None = None,
    python: str = "",
    gpus: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a probe of `probes.py`.

    Args:
        label: file name of its log and answer in `folder`, unique in it; absent: the kind.
        python: interpreter; empty for this one.
        gpus: UUIDs of the GPUs that it may see.
        env: further variables of its environment.
    """
    name = label or kind
    answer_path, log_path = folder / f"{name}.answer", folder / f"{name}.log"
    spec = ChildSpec(
        name=name,
        argv=(python or sys.executable, "-m", "forge.commands.doctor.probes"),
        log_path=log_path,
        env=child_env(threads=1, gpus=gpus, extra=env),
        socket_path=None,
        config={**(config or {}), "kind": kind, "answer_path": str(answer_path)},
        stop_grace_s=0.0,
    )
    ended, fault = "", ""
    try:
        async with open_child(spec) as child:
            with anyio.move_on_after(DEADLINES_S[kind]):
                ended = await child.wait()
    except ForgeError as error:
        fault = str(error).splitlines()[0]
    log = read_ending(log_path, num_lines=LOG_LINES)
    answers = _read_answers(answer_path)
    outcome = Outcome(answers=answers, fault=fault, log=log)
    if fault or ended == "exit 0":
        return outcome
    return replace(outcome, fault=_describe(ended, outcome, deadline_s=DEADLINES_S[kind]))


def _describe(ended: str, outcome: Outcome, *, deadline_s: float) -> str:
    """The probe's own error, or its end, with what it was doing."""
    said = next((answer for answer in outcome.answers if "error" in answer), None)
    if said is not None:
        return f"{said['error']} (while {said['doing'] or 'starting'})"
    how = ended or f"no end within {deadline_s:.0f} s"
    last = outcome.log.splitlines()[-1:] if ended else []
    return ": ".join([f"{how} while {outcome.get('doing') or 'starting'}", *last])


def _read_answers(path: Path) -> list[Mapping[str, Any]]:
    """The lines; a last one that a crash cut off is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []
