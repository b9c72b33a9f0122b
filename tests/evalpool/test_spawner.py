"""A zygote is replaced while children of the old one are still held: no other child pays for it."""

import dataclasses
import errno
import gc
import os
import resource
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.schema import JudgeTable
from forge.evalpool.judge import app
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.children import zygote
from forge.evalpool.judge.children.spawner import (
    LimitMet,
    SandboxRefused,
    Spawner,
    UnusableInstallation,
    ZygoteGone,
    _greeting,
)
from forge.evalpool.judge.children.zygote import reporting_refusals
from forge.evalpool.judge.sandbox import enter, processes, proof
from forge.evalpool.judge.sandbox.enter import LimitTooLow
from forge.evalpool.pool import Pool, open_pool
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split
from forge.records.verdict import Status, Verdict
from tests.evalpool.benches import ROOT
from tests.evalpool.judged import CODE, PROBLEM, SOURCE, Observer, wait_until_gone

CORES = tuple(sorted(os.sched_getaffinity(0))[-2:])


@pytest.fixture(scope="module")
def spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """Tests leave it with a zygote that is ready."""
    folder = tmp_path_factory.mktemp("spawner") / "root"
    opened = Spawner(isolation="auto", folder=folder, memory_bytes=1 << 30, cores=CORES)
    opened.start()
    opened.wait_ready()
    yield opened
    opened.close()


def test_a_child_is_held_to_its_core_and_an_oracle_to_its_judges_cores(spawner: Spawner) -> None:
    for role, cores in (("evaluator", {CORES[0]}), ("oracle", set(CORES))):
        child = spawner.spawn(role=role)
        assert os.sched_getaffinity(child.pid_here) == cores
        spawner.end(child)


def test_a_child_of_an_ended_zygote_is_not_taken_for_another_ones(spawner: Spawner) -> None:
    old, lost = (spawner.spawn(role="evaluator") for _ in range(2))
    spawner.start()
    with pytest.raises(ZygoteGone):  # it does not fork yet, and what it says is not for us
        spawner.spawn(role="evaluator")
    spawner.wait_ready()
    new = spawner.spawn(role="evaluator")
    numbered_alike = dataclasses.replace(old, pid=new.pid)
    assert (spawner.is_current(old), spawner.is_current(new)) == (False, True)
    assert spawner.end(numbered_alike) is None
    assert not processes.has_ended(new.pid_here)
    with pytest.raises(ZygoteGone, match="with its zygote"):
        spawner.ended(lost)
    spawner.end(new)


def test_a_zygote_that_is_killed_as_it_starts_is_said_to_be_killed(tmp_path: Path) -> None:
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    launcher = opened._process
    launcher.kill()
    with pytest.raises(ZygoteGone, match=r"^the zygote ended: killed by signal 9 .* while it star"):
        opened.wait_ready()
    opened.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), SandboxRefused),
        (OSError(errno.EMFILE, "Too many open files"), LimitMet),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), LimitMet),
        (LimitTooLow('"ulimit -n" is 40 here; a candidate gets 256'), LimitMet),
        (MemoryError(), LimitMet),
    ],
)
def test_a_failed_step_is_told_as_a_refusal_or_as_a_limit(
    error: Exception, kind: type[ZygoteGone]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        proof.ask_for_credentials(ours)
        with pytest.raises(type(error)), reporting_refusals(theirs):
            raise error
        with pytest.raises(kind) as caught:
            _greeting(ours, frames.Kind.READY, timeout_s=5)
    assert caught.type is kind


def test_a_limit_that_cannot_be_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, limits: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(enter.resource, "setrlimit", refuse)
    monkeypatch.setattr(enter.resource, "getrlimit", lambda kind: (40, 40))
    with pytest.raises(LimitTooLow, match='"ulimit -n" is 40 here; a candidate gets 256'):
        enter._set_limit(resource.RLIMIT_NOFILE, 256)


@pytest.mark.parametrize(
    ("error", "code", "words", "absent"),
    [
        (SandboxRefused("unshare: no"), 3, 'isolation = "none"', "out of memory"),
        (LimitMet('"ulimit -n" is 40 here'), 3, "no candidate can be started", "CAP_SYS_ADMIN"),
        (ZygoteGone("the zygote ended: killed by signal 9"), 4, "killed by signal 9", "SYS_ADMIN"),
    ],
)
def test_a_judge_without_a_zygote_says_what_is_to_blame(
    error: ZygoteGone, code: int, words: str, absent: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    codes: list[int] = []
    monkeypatch.setattr(app.os, "_exit", codes.append)
    app._refuse(error)
    assert codes == [code]
    assert words in caplog.text
    assert absent not in caplog.text


def test_an_installation_that_cannot_be_used_is_not_taken_for_a_missing_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('made for\\nanother torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    with pytest.raises(
        UnusableInstallation, match=r"torch 2\.\S+, triton \S+: ImportError: made for$"
    ):
        opened.wait_ready()
    opened.close()


def test_a_zygote_that_fails_in_any_other_way_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.fork = lambda: {}['no such key']")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    with pytest.raises(ZygoteGone, match=r"^KeyError: 'no such key'$"):
        opened.wait_ready()
    opened.close()
    assert capfd.readouterr().err.splitlines()[-1] == "KeyError: 'no such key'"


TABLE = JudgeTable(workers=1, compile_timeout_s=20.0, correct_timeout_s=20.0)
BUSY = "for _ in range(15_000_000): pass"
"""More than half a second of CPU time, in which a test finds the process and kills it."""
BUSY_TICKS = 10
"""A tenth of a second of CPU time, by which a process counts as in its loop."""
LOOP = "    waste = value\n    for _ in range(n, 15_000):\n        waste = tl.sin(waste + value)\n"
CANDIDATES = {
    "capture": CODE + BUSY + "\n",
    "correct": CODE.replace(
        "    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)",
        "    value = tl.load(x + i, mask=i < n) + 1\n"
        f"{LOOP}    tl.store(y + i, value + waste * 0.0, mask=i < n)",
    ),
}
"""By the phase in which they take seconds: in the candidate's own code, or in its kernel."""
OF_ITS_OWN = "torch.set_grad_enabled(True)\n"
"""An oracle that draws for several problems would be taken for one at work."""
SLOW_REFERENCE = SOURCE + OF_ITS_OWN + BUSY + "\n"


@pytest.fixture(scope="module")
def observer() -> Observer:
    return Observer()


@pytest.fixture(scope="module")
async def pool(observer: Observer) -> AsyncIterator[Pool]:
    with open_socket_dir() as at:
        async with open_pool(TABLE, socket_dir=at, log_dir=at, observer=observer) as opened:
            yield opened


def chains(judge: int) -> list[list[int]]:
    """Judge, launcher, zygote, and each runner or oracle that there is; shorter without."""
    table = processes.read_table()

    def longer(found: list[int]) -> list[list[int]]:
        children = [row.pid for row in table if row.parent == found[-1]]
        if not children or len(found) == 4:
            return [found]
        return [one for child in children for one in longer([*found, child])]

    return longer([judge])


def chain(judge: int) -> list[int]:
    """Judge, launcher, zygote, and the youngest of their children."""
    return max(chains(judge), key=lambda found: (len(found), found[1:]))


async def ready_chain(observer: Observer) -> list[int]:
    """The judge's chain with its zygote: the last kill may not be repaired yet, and a launcher's
    first children are tries of a sandbox, which end at once."""
    before: list[int] = []
    with anyio.fail_after(60):
        while True:
            found = [pid for judge in observer.alive() for pid in chain(judge)[: ZYGOTE + 1]]
            if len(found) > ZYGOTE and found == before:
                return found
            before = found
            await anyio.sleep(0.5)


def cpu_ticks(pid: int) -> int:
    """User time that a process gathers in its loop."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rsplit(")", 1)[1].split()[11])


async def busy_chain(judges: list[int]) -> list[int]:
    """The process of the child that is in its loop. Others wait, for another draw or candidate."""
    at_first: dict[int, int] = {}
    with anyio.fail_after(30):
        while True:
            for found in (one for judge in judges for one in chains(judge) if len(one) == 4):
                ticks = cpu_ticks(found[-1])
                if ticks - at_first.setdefault(found[-1], ticks) >= BUSY_TICKS:
                    return found
            await anyio.sleep(0.01)


def problem(source: str) -> Problem:
    return Problem(problem_id="p", source=source, family="", level=1, split=Split.GRPO)


async def judged_with_a_kill(
    pool: Pool,
    observer: Observer,
    asked: Problem,
    code: str,
    *,
    victim: int,
    num_infra: Collection[int] = (1,),
) -> Verdict:
    """Kills once, in the loop; `victim` as `chain` orders them. It costs `num_infra` faults."""
    before = pool.stats()
    for seat in pool.seating.seats:
        seat.num_faults = 0  # two kills in a row would quarantine a judge
    verdicts: list[Verdict] = []
    found: list[int] = []

    async def ask() -> None:
        verdicts.append(await pool.judge(asked, code))

    with anyio.fail_after(90):
        async with anyio.create_task_group() as tg:
            tg.start_soon(ask)
            found += await busy_chain(observer.alive())
            os.kill(found[victim], signal.SIGKILL)
            await wait_until_gone(set(found[victim:]))
    assert pool.stats().num_infra - before.num_infra in num_infra
    assert (found[JUDGE] in observer.alive()) == (victim != JUDGE), "it replaces what it started"
    return verdicts[0]


JUDGE, LAUNCHER, ZYGOTE, CHILD = range(4)


def places(*quick: tuple[str, int]) -> list[Any]:
    """Every phase with every victim: those in `quick`, and the others in `make test-all`."""
    return [
        pytest.param(phase, victim, marks=() if (phase, victim) in quick else pytest.mark.long)
        for phase in CANDIDATES
        for victim in (JUDGE, LAUNCHER, ZYGOTE, CHILD)
    ]


def victims(*quick: int) -> list[Any]:
    """Every victim beside a reference or in a sandbox: those in `quick`, and the others."""
    return [
        pytest.param(victim, marks=() if victim in quick else pytest.mark.long)
        for victim in (JUDGE, LAUNCHER, ZYGOTE, CHILD)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "victim"), places(("capture", ZYGOTE), ("correct", JUDGE), ("correct", CHILD))
)
async def test_who_is_killed_beside_a_candidate_is_not_held_against_it(
    pool: Pool, observer: Observer, phase: str, victim: int
) -> None:
    code = f"{CANDIDATES[phase]}# {victim}"
    # A capture or a call whose child serves others too is repeated by its judge.
    num_infra = (0, 1) if victim == CHILD else (1,)
    verdict = await judged_with_a_kill(
        pool, observer, PROBLEM, code, victim=victim, num_infra=num_infra
    )
    assert (verdict.status, verdict.reason) == (Status.CORRECT, "ok"), verdict.detail
    assert verdict.phase_s[phase] > 0.1  # it was killed where this test says


@pytest.mark.slow
@pytest.mark.parametrize("victim", victims(LAUNCHER, CHILD))
async def test_who_is_killed_beside_a_reference_is_not_held_against_it(
    pool: Pool, observer: Observer, victim: int
) -> None:
    """An oracle that ends is asked once more by its own judge, on plain inputs."""
    asked, faults = problem(f"{SLOW_REFERENCE}# {victim}"), {0 if victim == CHILD else 1}
    verdict = await judged_with_a_kill(pool, observer, asked, CODE, victim=victim, num_infra=faults)
    assert (verdict.status, verdict.reason) == (Status.CORRECT, "ok"), verdict.detail


@pytest.mark.slow
@pytest.mark.parametrize("victim", victims(ZYGOTE)[:CHILD])
async def test_who_is_killed_while_a_sandbox_is_made_is_replaced(
    pool: Pool, observer: Observer, victim: int
) -> None:
    """A zygote that is stopped forks nothing: a candidate that is not plain waits for it."""
    found = await ready_chain(observer)
    os.kill(found[ZYGOTE], signal.SIGSTOP)
    verdicts: list[Verdict] = []

    async def ask() -> None:
        verdicts.append(await pool.judge(PROBLEM, f"{CODE}import os  # sandbox {victim}"))

    with anyio.fail_after(90):
        async with anyio.create_task_group() as tg:
            tg.start_soon(ask)
            await anyio.sleep(0.3)
            assert not verdicts
            os.kill(found[victim], signal.SIGKILL)
            await wait_until_gone(set(found[victim:]))
    assert verdicts[0].status in (Status.CORRECT, Status.INFRA_ERROR)
    again = await pool.judge(PROBLEM, f"{CODE}# sandbox {victim} again")
    assert again.status is Status.CORRECT


@pytest.mark.slow
async def test_a_candidate_whose_process_is_killed_each_time_is_scored_for_it(
    pool: Pool, observer: Observer
) -> None:
    """As far as a judge can tell it may have seen to that itself."""
    verdicts: list[Verdict] = []

    async def kill_always() -> None:
        while True:
            found = await busy_chain(observer.alive())
            os.kill(found[CHILD], signal.SIGKILL)
            await wait_until_gone({found[CHILD]})

    with anyio.fail_after(90):
        async with anyio.create_task_group() as tg:
            tg.start_soon(kill_always)
            verdicts.append(await pool.judge(PROBLEM, CANDIDATES["capture"] + "# twice"))
            tg.cancel_scope.cancel()
    assert (verdicts[0].status, verdicts[0].reason) == (Status.RUNTIME_ERROR, "killed")


@pytest.mark.parametrize(
    ("statement", "status", "reason"),
    [
        ("os.kill(os.getpid(), 9)", Status.CORRECT, "ok"),  # pid 1 of its namespace: no effect
        # The kernel's SIGKILL. Infra once; the same again is scored (`pool.py`).
        ("setrlimit(RLIMIT_CPU, (1, 1)); spin()", Status.INFRA_ERROR, "runner_killed"),
    ],
)
@pytest.mark.usefixtures("free_host_code")
def test_what_a_candidate_can_do_to_its_own_process(
    bench: Any, statement: str, status: Status, reason: str
) -> None:
    head = "import os\nfrom resource import RLIMIT_CPU, setrlimit\n"
    spin = "def spin():\n    while True: pass\n"
    verdict = bench.judge(f"{head}{spin}{CODE}{statement}\n", problem=SOURCE)
    assert (verdict.status, verdict.reason) == (status, reason), verdict.detail


def test_no_child_has_a_descriptor_of_a_card_that_the_zygote_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's fake tensors ask a CUDA driver for its devices, and the driver keeps them open."""
    monkeypatch.setattr(zygote, "CARD_NODES", ("/dev/full",))
    monkeypatch.setattr(zygote.enter, "enter_child_sandbox", lambda *given, **named: None)
    monkeypatch.setattr(tempfile, "tempdir", None)
    fd = os.open("/dev/full", os.O_RDONLY)
    found = zygote.find_card_files()
    assert found == (fd,)
    around: Any = SimpleNamespace(own_pid_namespace=None)
    limits = {"uid": None, "memory_bytes": None, "cores": [], "num_siblings": 1}
    body = {"role": "capture", "home_files": {}, **limits}
    with socket.socket() as sock:
        try:
            zygote.Zygote(sock=sock, around=around, mains={}, folder="", card_files=found)._enter(
                body, ""
            )
        finally:
            gc.enable()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
