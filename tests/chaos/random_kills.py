"""SIGKILL of the supervisor at random moments, again and again, until its runs are finished."""

from __future__ import annotations

import random
import signal
import time
from subprocess import TimeoutExpired

from tests.chaos.cells import Cell, Fault, Phase, Seen, Target
from tests.chaos.driver import ENDING_S, Result, await_children
from tests.chaos.invariants import Acknowledged, Course, broken_promises
from tests.chaos.machine import Command, Machine, open_machine, with_private_mounts
from tests.chaos.moments import RunView, send
from tests.chaos.tiny_experiments import STEPS, Taught, experiment_of

LONGEST_S = 20.0
"""Latest moment after the start of an attempt: a few steps past the imports."""
CELL = Cell(
    target=Target.SUPERVISOR,
    phase=Phase.TRAINING,
    fault=Fault.KILL,
    expects=frozenset({Seen.KILLED}),
)


def kill_at_random(taught: Taught, *, seed: int, num_kills: int) -> Result:
    """Kill supervisors `num_kills` times, each run until it finishes, and check every promise."""
    result, began = Result(cell=f"supervisor-random-kill-{seed}"), time.monotonic()
    try:
        with_private_mounts(lambda: _kill_in_namespace(taught, seed, num_kills, result))
    except AssertionError as error:
        result.faults.append(str(error))
    result.seconds = time.monotonic() - began
    return result


def _kill_in_namespace(taught: Taught, seed: int, num_kills: int, result: Result) -> None:
    with open_machine() as machine:
        (machine.root / "x.toml").write_text(experiment_of(CELL, taught))
        _kill_runs(machine, random.Random(seed), num_kills, result)
        assert not result.faults, f"kept in {machine.root}"


def _kill_runs(machine: Machine, draw: random.Random, num_kills: int, result: Result) -> None:
    kills, runs = list[str](), 0
    while len(kills) < num_kills:
        runs += 1
        run = RunView(root=machine.root / "runs" / f"x-{runs}")
        before = Acknowledged.read(run)
        is_finished = False
        while not is_finished and len(kills) < num_kills:
            command = _begin(machine, run)
            try:
                code = command.wait(draw.uniform(0, LONGEST_S))
            except TimeoutExpired:
                send([command.pid], signal.SIGKILL)
                code = command.wait(ENDING_S)
                kills.append(f"{run.trained}")
            is_finished = code == 0
            if not is_finished and code != -signal.SIGKILL:
                result.faults.append(f"ended with {code}: {command.last_line()}")
                return
            await_children(machine)
            before = _check_rows(before, run, result)
        command = _begin(machine, run)
        code = command.wait(ENDING_S)
        course = Course(
            cell=CELL,
            machine=machine,
            run=run,
            before=before,
            commands=[command],
            steps=STEPS["grpo"],
        )
        result.faults += broken_promises(course)
        result.resumed = f"exit {code}"
    result.seen = f"{len(kills)} kills, {runs} runs"
    result.said = f"after steps {' '.join(kills)}"


def _begin(machine: Machine, run: RunView) -> Command:
    is_there = (run.root / "experiment.toml").exists() and (run.root / "run.db").exists()
    return machine.start("resume", run.root.name) if is_there else machine.start("run", "x.toml")


def _check_rows(before: Acknowledged, run: RunView, result: Result) -> Acknowledged:
    """Every row from before the last attempt is there; returns those of now."""
    now = Acknowledged.read(run)
    for table, rows in before.rows.items():
        if lost := rows - now.rows[table]:
            result.faults.append(f"{len(lost)} acknowledged rows of {table} are lost")
    return now
