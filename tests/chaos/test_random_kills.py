"""A supervisor killed at 100 random moments, by name: `pytest -n 10 tests/chaos -k random`.

Each of ten runs is killed ten times, as early as in its imports and as late as in its last step,
again and again until its runs are finished.
"""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import TimeoutExpired

import pytest

from tests.chaos.cells import Cell, Fault, Phase, Seen, Target
from tests.chaos.driver import ENDING_S, Result, await_children, conclude
from tests.chaos.invariants import Acknowledged, Course, broken_promises
from tests.chaos.machine import POLL_S, Command, Machine, open_machine, with_private_mounts
from tests.chaos.moments import RunView, send
from tests.chaos.tiny_experiments import STEPS, experiment_of
from tests.e2e.experiments import Taught

RUNS = 10
KILLS = 10


@pytest.mark.chaos
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_supervisor_killed_at_random_moments_loses_nothing(
    seed: int, taught: Taught, record_property: Callable[[str, object], None]
) -> None:
    conclude(kill_at_random(taught, seed=seed, num_kills=KILLS), record_property)


LONGEST_S = 10.0
"""Longest pause before a kill: the imports, or a few steps."""
NUM_USES = "SELECT count(*) FROM sample_uses"
CELL = Cell(
    target=Target.SUPERVISOR,
    phase=Phase.TRAINING,
    fault=Fault.KILL,
    expects=frozenset({Seen.KILLED}),
)


def kill_at_random(taught: Taught, *, seed: int, num_kills: int) -> Result:
    """Kill supervisors `num_kills` times, each run until it finishes, and check every promise."""
    result = Result()
    try:
        with_private_mounts(lambda: _kill_in_namespace(taught, seed, num_kills, result))
    except AssertionError as error:
        result.faults.append(str(error))
    return result


def _kill_in_namespace(taught: Taught, seed: int, num_kills: int, result: Result) -> None:
    with open_machine() as machine:
        (machine.root / "x.toml").write_text(experiment_of(CELL, taught))
        _kill_runs(machine, random.Random(seed), num_kills, result)
        assert not result.faults, f"kept in {machine.root}"


def _kill_runs(machine: Machine, draw: random.Random, num_kills: int, result: Result) -> None:
    kills, num_runs = list[str](), 0
    while len(kills) < num_kills:
        num_runs += 1
        run, before, is_finished = None, None, False
        while not is_finished:
            run, command = _begin(machine, run)
            if len(kills) < num_kills:
                _wait_at_random(run, command, draw)
            code = _end(command, is_killed=len(kills) < num_kills)
            if code < 0:
                kills.append(f"{run.trained}")
            elif code > 0:
                result.faults.append(f"ended with {code}: {command.last_line()}")
                return
            await_children(machine)
            before = _check_rows(before, run, result)
            is_finished = code == 0
        assert run is not None
        assert before is not None
        result.faults += broken_promises(
            Course(
                cell=CELL,
                machine=machine,
                run=run,
                before=before,
                commands=machine.started[-1:],
                steps=STEPS["grpo"],
            )
        )
    result.seen = f"{len(kills)} kills, {num_runs} runs finished"
    result.said = f"after steps {' '.join(kills)}"


def _begin(machine: Machine, run: RunView | None) -> tuple[RunView, Command]:
    """Resume the run, or start one: a run that was killed before it had tables is none yet."""
    if run is not None and run.number("PRAGMA user_version"):
        return run, machine.start("resume", run.root.name)
    taken = [int(path.name.removeprefix("x-")) for path in (machine.root / "runs").glob("x-*")]
    root = machine.root / "runs" / f"x-{1 + max(taken, default=0)}"
    return RunView(root=root), machine.start("run", "x.toml")


def _wait_at_random(run: RunView, command: Command, draw: random.Random) -> None:
    is_early, pause_s = draw.random() < 0.5, draw.uniform(0, LONGEST_S)
    before = run.number(NUM_USES)
    while not is_early and command.code is None and run.number(NUM_USES) <= before:
        time.sleep(POLL_S)
    with suppress(TimeoutExpired):
        command.wait(pause_s)


def _end(command: Command, *, is_killed: bool) -> int:
    if is_killed:
        send([command.pid], signal.SIGKILL)
    return command.wait(ENDING_S)


def _check_rows(before: Acknowledged | None, run: RunView, result: Result) -> Acknowledged:
    """Every row from before the last attempt is there; returns those of now."""
    now = Acknowledged.read(run)
    for table, rows in before.rows.items() if before is not None else ():
        if lost := rows - now.rows[table]:
            result.faults.append(f"{len(lost)} acknowledged rows of {table} are lost")
    return now
