"""The moments at which a fault strikes, seen from outside: in the run's store and its files.

A phase of milliseconds is met by holding the victim (SIGSTOP) as soon as the phase is seen, and by
looking again: if it has passed, the victim goes on and the next occurrence is awaited.
"""

import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.cells import Phase, Target
from tests.chaos.machine import POLL_S, Command
from tests.chaos.processes import find
from tests.e2e.commands import is_alive

MEETING_S = 300.0
"""Maximum wait for a phase: imports of torch on a crowded machine."""
PROCESS_NAMES = {Target.TRAINER: "trainer", Target.ENGINE: "serve-0", Target.JUDGE: "judge-0"}
ROOT_NAMES = {Target.RANK: "trainer", Target.ZYGOTE: "judge-0", Target.RUNNER: "judge-0"}
"""Recorded process that starts an unrecorded one."""
LASTING = (Target.SUPERVISOR, Target.STORE, Target.MACHINE, Target.TRAINER, Target.ENGINE,
           Target.JUDGE, Target.SINK)  # fmt: skip
"""Targets that are one process for as long as they live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    root: Path

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a query; none while there is no store that can be read."""
        try:
            uri = f"file:{self.root}/run.db?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=5)) as db:
                return db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError:
            return []

    def number(self, sql: str, *values: object) -> int:
        rows = self.ask(sql, *values)
        return int(rows[0][0] or 0) if rows else 0

    @property
    def attempt(self) -> int:
        return self.number("SELECT max(attempt) FROM attempts")

    @property
    def trained(self) -> int:
        return max(
            self.number("SELECT max(step) FROM sample_uses"),
            self.number("SELECT max(step) FROM metrics WHERE key LIKE 'train/loss%'"),
        )

    def checkpoints(self) -> list[int]:
        return sorted(int(p.name[11:]) for p in self.root.glob("checkpoints/*/checkpoint-*"))

    def has_begun(self, target: Target) -> bool:
        """True if the last attempt has started the target."""
        if target in (Target.SUPERVISOR, Target.STORE, Target.MACHINE):
            return self.attempt > 0
        name = PROCESS_NAMES.get(target) or ROOT_NAMES[target]
        sql = "SELECT count(*) FROM processes WHERE name = ? AND attempt = ?"
        return self.number(sql, name, self.attempt) > 0


def is_reached(phase: Phase, run: RunView, target: Target) -> bool:
    match phase:
        case Phase.STARTING | Phase.RESUMING:
            return run.has_begun(target)
        case Phase.EVAL:
            begun = run.number("SELECT count(*) FROM events WHERE kind = 'stage_start'")
            return begun > 0 and not run.number("SELECT count(*) FROM evaluations")
        case Phase.SFT:
            return run.trained >= 1 and not run.ask("SELECT 1 FROM policies")
        case Phase.PLAYING:
            return bool(run.ask("SELECT 1 FROM groups WHERE num_rollouts = 0 LIMIT 1"))
        case Phase.TRAINING | Phase.STOPPING:
            return run.trained >= 1 and max(_batches(run), default=0) > run.trained
        case Phase.PUBLISHING:
            written = {p.name for p in run.root.glob("weights/grpo-*")}
            return bool(written - {Path(path).name for (path,) in run.ask(PATHS)})
        case Phase.SAVING:
            return any(run.root.glob("checkpoints/*/.staging/checkpoint-*"))
        case Phase.STOPPED:
            saved = run.checkpoints()
            if not _batches(run):  # sft: a fast one saves sooner than its losses are stored
                return bool(saved)
            return len(saved) >= 2 and run.trained > saved[-1]
        case Phase.ENDING:
            return True


PATHS = "SELECT path FROM policies"


def _batches(run: RunView) -> list[int]:
    return [int(path.stem.partition("-")[2]) for path in run.root.glob("batches/*-*.npz")]


def meet(phase: Phase, run: RunView, target: Target, command: Command) -> list[int]:
    """Wait for the phase and hold the target in it. Returns its pids, which are stopped.

    Raises AssertionError if the run ends before, or MEETING_S pass.
    """
    held = list[int]()

    def is_met() -> bool:
        # A process of the whole run is looked for before the phase, which a search may outlast.
        if target not in LASTING or not held or not all(map(is_alive, held)):
            held[:] = find(target, supervisor=command.pid)
        if not held or not is_reached(phase, run, target):
            return False
        send(held, signal.SIGSTOP)
        if is_reached(phase, run, target) and all(map(is_alive, held)):
            return True
        send(held, signal.SIGCONT)
        return False

    end = time.monotonic() + MEETING_S
    while not is_met():
        assert command.code is None, f"it ended before {target} in {phase}: {command.last_line()}"
        assert time.monotonic() < end, f"no {target} in {phase} within {MEETING_S:.0f} s"
        time.sleep(POLL_S)
    return held


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
