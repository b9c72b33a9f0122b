"""Makes and rewrites Inductor's rows in several processes, with a time limit for each row.

A row that takes too long, or ends its process, costs its own row and no other. With a GPU each
process has a CUDA context (0.5 GB), which is gone when all rows are made.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from bench.inductor_problems import SMALLER, lowered

ROW_S = 15.0
"""Maximum time for a row."""
SILENCE_S = 25.0
"""Time without any row after which the remaining ones are given up: their processes are dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem of which a row is to be made."""

    name: str
    problem: str
    trains: bool = False
    """True if forward also returns what a backward would need."""
    largest: int | None = None
    """Largest constant of the problem; None for those of its file."""
    max_bytes: int | None = None
    """Bytes of inputs and parameters above which the constants are lowered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A row, and the module that was made of it."""

    name: str
    problem: str
    trains: bool = False
    error: str = ""
    """Why there is no row; empty if there is one."""
    answer: str = ""
    reason: str = ""
    """Why the row was not rewritten; empty if it was."""
    detail: str = ""
    code: str = ""
    policy: str = ""
    num_kernels: int = 0
    make_s: float = 0.0


class _TimeUp(BaseException):
    """Ends a row. No Exception, which Inductor would wrap."""


def make_all(
    tasks: Sequence[Task], *, workers: int, until: float, stopped: Callable[[], bool]
) -> Iterator[Made]:
    """Rows as they are ready.

    Args:
        tasks: The problems.
        workers: Number of processes.
        until: Monotonic time at which the remaining rows are given up.
        stopped: True once the user has asked for an end.
    """
    with multiprocessing.get_context("spawn").Pool(workers, _prepare) as pool:
        ready = pool.imap_unordered(make, tasks)
        heard = time.monotonic() + SILENCE_S  # the first row waits for torch's import
        while not stopped() and time.monotonic() < min(until, heard + SILENCE_S):
            try:
                yield ready.next(timeout=0.5)
            except multiprocessing.TimeoutError:
                continue
            except StopIteration:
                return
            heard = time.monotonic()


def _prepare() -> None:
    """Settings of a process: one thread, no pool of compilers of its own, torch imported."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import torch

    import bench.inductor_rows  # noqa: F401  (outside the time limit of the first row)

    torch.set_num_threads(1)


def make(task: Task) -> Made:
    """The row of a problem and its module, or the error that prevented them."""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, _time_up)
    signal.setitimer(signal.ITIMER_REAL, ROW_S)
    try:
        made = _rewritten(_row(task))
    except _TimeUp:
        made = Made(name=task.name, problem=task.problem, error=f"takes over {ROW_S:.0f} s")
    except Exception as err:
        error = f"{type(err).__name__}: {str(err)[:200]!r}"
        made = Made(name=task.name, problem=task.problem, error=error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return replace(made, make_s=round(time.monotonic() - began, 3))


def _time_up(*_: Any) -> NoReturn:
    raise _TimeUp


def _row(task: Task) -> Made:
    from bench.inductor_rows import make_row

    problem = _fitting(task)
    trains = task.trains
    try:
        row = make_row(task.name, problem, trains=trains)
    except Exception:
        if not trains:
            raise
        trains = False  # no backward, for one: a model whose output has no gradient
        row = make_row(task.name, problem)
    return Made(name=task.name, problem=problem, trains=trains, answer=row.answer)


def _fitting(task: Task) -> str:
    """The problem, with its constants lowered as far as its size demands."""
    from bench.inductor_rows import num_bytes

    problem = task.problem if task.largest is None else lowered(task.problem, task.largest)
    smaller = iter(one for one in SMALLER if task.largest is None or one < task.largest)
    while task.max_bytes is not None and num_bytes(problem) > task.max_bytes:
        largest = next(smaller, None)
        if largest is None:
            raise ValueError(f"over {task.max_bytes} bytes with constants of {SMALLER[-1]} too")
        problem = lowered(task.problem, largest)
    return problem


def _rewritten(made: Made) -> Made:
    from forge.data.inductor import NotRewritten, rewrite

    try:
        one = rewrite(made.answer)
    except NotRewritten as err:
        return replace(made, reason=str(err.reason), detail=err.detail)
    return replace(made, code=one.code, policy=one.policy, num_kernels=one.num_kernels)
