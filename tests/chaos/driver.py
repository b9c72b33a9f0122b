"""The driver: plays one cell from `forge run` to the last promise.

run ──▶ the phase is reached, the victim is held ──▶ acknowledged rows are read ──▶ fault
 └──▶ the command ends by itself ──▶ the fault is repaired ──▶ forge resume ──▶ promises
"""

import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.cells import DAMAGES, Cell, Fault, Phase, Seen, Target
from tests.chaos.faults import clock_env, damage, disk_of, repair, strike
from tests.chaos.invariants import Acknowledged, Course, broken_promises, some
from tests.chaos.machine import (
    IS_ROOT,
    POLL_S,
    Command,
    Disk,
    Machine,
    MissingMount,
    has_private_mounts,
    open_machine,
    wait_until,
    with_private_mounts,
)
from tests.chaos.moments import RunView, meet, send
from tests.chaos.tiny_experiments import STEPS, experiment_of, ranks_env
from tests.e2e.experiments import Taught

ENDING_S = 300.0
"""Maximum time from a fault to the end of the command."""
CHILDREN_S = 20.0
RESTARTS = """
SELECT count(*) FROM (SELECT name FROM processes WHERE name NOT LIKE 'notify%'
    GROUP BY attempt, name HAVING count(*) > 1)
"""


@dataclass(slots=True, kw_only=True)
class Result:
    """A played cell, with what a JUnit file shows of it."""

    seen: str = ""
    """Outcome of the struck command."""
    said: str = ""
    """Last line of the struck command."""
    resumed: str = ""
    """Outcome of the last `forge resume`; empty without one."""
    cpu_s: float = 0.0
    faults: list[str] = field(default_factory=list[str])
    """Broken promises and other reasons of a failure; empty if the cell passed."""
    skipped: str = ""


def reason_to_skip(cell: Cell) -> str:
    """A requirement of the cell that this machine does not meet; empty if there is none."""
    is_private = disk_of(cell) is not Disk.SHARED or cell.fault in PRIVATE
    if is_private and not has_private_mounts():
        return "needs a private mount namespace, which root may make"
    if cell.target is Target.SINK and find_spec("tensorboard") is None:
        return "needs tensorboard"
    if not IS_ROOT and cell.target is Target.RUNNER:
        return "needs root: runners are known by their uid"
    return ""


PRIVATE = (Fault.SHM_FULL, Fault.TMP_FULL)
CLOCKS = (Fault.CLOCK_BACK, Fault.CLOCK_FORWARD)


def play(cell: Cell, taught: Taught) -> Result:
    result = Result()
    if skipped := reason_to_skip(cell):
        result.skipped = skipped
        return result
    cpu_before = _cpu_s()
    try:
        with TemporaryDirectory(prefix="chaos-env-") as folder:
            env = ranks_env(Path(folder, "site")) if cell.target is Target.RANK else {}
            clock = clock_env(Path(folder)) if cell.fault in CLOCKS else {}
            if clock is None:
                result.skipped = "needs a C compiler, for a wall clock that jumps"
                return result
            with_private_mounts(
                lambda: _play_in_namespace(cell, taught, result, env={**env, **clock})
            )
    except (AssertionError, RuntimeError) as error:
        result.faults.append(str(error))
    except TimeoutExpired as error:
        result.faults.append(f"no end within {error.timeout:.0f} s after the fault")
    except MissingMount as error:
        result.skipped = str(error)
    result.cpu_s = _cpu_s() - cpu_before
    return result


def conclude(result: Result, record_property: Callable[[str, object], None]) -> None:
    for name in ("seen", "said", "resumed", "cpu_s"):
        record_property(name, str(getattr(result, name)))  # which xdist sends as text
    if result.skipped:
        pytest.skip(result.skipped)
    assert not result.faults, "\n".join(result.faults)


def _play_in_namespace(cell: Cell, taught: Taught, result: Result, *, env: dict[str, str]) -> None:
    with open_machine(disk=disk_of(cell), env=env) as machine:
        _play_on(machine, cell, taught, result)
        assert not result.faults, f"kept in {machine.root}"


def _play_on(machine: Machine, cell: Cell, taught: Taught, result: Result) -> None:
    (machine.root / "x.toml").write_text(experiment_of(cell, taught))
    run = RunView(root=machine.root / "runs" / "x-1")
    command = machine.start("run", "x.toml")
    if cell.phase in (Phase.STOPPED, Phase.RESUMING):
        _kill(cell, run, command)
    if cell.phase is Phase.STOPPED:
        before, command = _strike_stopped(machine, cell, run)
    else:
        if cell.phase is Phase.RESUMING:
            command = machine.start("resume", "x-1")
            _wait_for_attempt(run, command, 2)
        before = _strike_running(machine, cell, run, command)
    commands = [command]
    if cell.fault is Fault.STOP and cell.target is Target.SUPERVISOR:
        commands += _ask_a_stopped(machine, command, result)
    code = command.wait(ENDING_S)
    result.seen, result.said = _seen(code, run), command.last_line()
    if result.seen not in cell.expects:
        expected = " or ".join(sorted(cell.expects))
        result.faults.append(f"{result.seen}, expected {expected}: {result.said}")
    await_children(machine)
    repair(cell, machine)
    if code != 0 or not cell.finishes:
        commands.append(machine.start("resume", "x-1"))
        again = commands[-1].wait(ENDING_S)
        result.resumed = f"exit {again}"
        allowed = {True: (0,), False: (2, 3), None: (0, 3)}[cell.finishes]
        if again not in allowed:
            words = commands[-1].last_line()
            result.faults.append(f"resume ended with {again}: {words}")
    steps = STEPS[cell.stage]
    course = Course(
        cell=cell, machine=machine, run=run, before=before, commands=commands, steps=steps
    )
    result.faults += broken_promises(course)


def _kill(cell: Cell, run: RunView, command: Command) -> None:
    """Kill a run in its evaluation, or after a step that no checkpoint covers; where its WAL is to
    be damaged, at a moment when this holds something."""
    phase = Phase.EVAL if cell.stage == "eval" else Phase.STOPPED
    pids = meet(phase, run, Target.SUPERVISOR, command)
    while cell.file.endswith("-wal") and not (run.root / cell.file).stat().st_size:
        send(pids, signal.SIGCONT)
        time.sleep(POLL_S)
        pids = meet(phase, run, Target.SUPERVISOR, command)
    send(pids, signal.SIGKILL)
    command.wait(CHILDREN_S)


def _strike_stopped(machine: Machine, cell: Cell, run: RunView) -> tuple[Acknowledged, Command]:
    await_children(machine)
    before = Acknowledged.read(run)
    if cell.fault in DAMAGES:
        damage(cell, run.root)
    else:
        strike(cell, [], machine)
    return before, machine.start("resume", "x-1")


def _strike_running(machine: Machine, cell: Cell, run: RunView, command: Command) -> Acknowledged:
    """Strike the target in its phase; returns what was acknowledged then."""
    pids = meet(cell.phase, run, cell.target, command)
    if cell.phase is Phase.STOPPING:
        _stop(command, is_held=command.pid in pids)
    before = Acknowledged.read(run)
    strike(cell, pids, machine)
    return before


def _stop(command: Command, *, is_held: bool) -> None:
    send([command.pid], signal.SIGTERM)
    if is_held:
        send([command.pid], signal.SIGCONT)
    wait_until(lambda: "stopping:" in command.said(), timeout_s=30, what="the answer to a stop")
    if is_held:
        send([command.pid], signal.SIGSTOP)


def _wait_for_attempt(run: RunView, command: Command, attempt: int) -> None:
    wait_until(
        lambda: run.attempt >= attempt or command.code is not None,
        timeout_s=60, what=f"attempt {attempt}",
    )  # fmt: skip


def _ask_a_stopped(machine: Machine, command: Command, result: Result) -> list[Command]:
    """A person looks at a supervisor that is stopped, tries to resume the run, and kills it."""
    asked = [machine.start("status", "x-1"), machine.start("resume", "x-1")]
    for each, wanted in zip(asked, (5, 2), strict=True):
        if (code := each.wait(60)) != wanted:
            result.faults.append(f"a question ended with {code}: {each.last_line()}")
    send([command.pid], signal.SIGKILL)
    return asked


def await_children(machine: Machine) -> None:
    """Return when no process of the cell is left; what stays is a broken promise."""
    end = time.monotonic() + CHILDREN_S
    while (left := machine.left()) and time.monotonic() < end:
        time.sleep(POLL_S)
    assert not left, f"left running for {CHILDREN_S:.0f} s: {some(left)}"


def _seen(code: int, run: RunView) -> str:
    if code < 0:
        return Seen.KILLED
    if code > 0:
        return f"exit {code}"
    return Seen.RESTARTED if run.number(RESTARTS) else Seen.SURVIVED


def _cpu_s() -> float:
    """CPU seconds of all children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
