"""The pool with real judges: caching, retries, restarts, and their end with the supervisor."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.schema import JudgeTable
from forge.errors import MachineError
from forge.evalpool import pool as pool_module
from forge.evalpool.links import judge_spec
from forge.evalpool.pool import Pool, open_pool
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split
from forge.records.verdict import Status, Verdict
from tests.evalpool.judged import (
    CODE,
    PROBLEM,
    ROOT,
    SOURCE,
    Observer,
    descendants,
    wait_until_gone,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from forge.evalpool.wire import JudgeRequest
    from forge.process.child import ChildSpec

pytestmark = pytest.mark.anyio

SPIN = CODE.replace("return y", "while True: pass")
BUSY = f"{CODE}for _ in range(15_000_000): pass\n"
"""Right, after more than half a second of CPU time in which a test finds its process."""
TABLE = JudgeTable(workers=1, compile_timeout_s=5.0, correct_timeout_s=5.0)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def observer() -> Observer:
    return Observer()


@pytest.fixture(scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory, observer: Observer) -> AsyncIterator[Pool]:
    with open_socket_dir() as socket_dir:
        log_dir = tmp_path_factory.mktemp("logs")
        async with open_pool(
            TABLE, socket_dir=socket_dir, log_dir=log_dir, observer=observer
        ) as opened:
            yield opened


async def test_an_honest_kernel_is_correct(pool: Pool) -> None:
    verdict = await pool.judge(PROBLEM, CODE)
    assert verdict.status is Status.CORRECT
    assert verdict.harness


async def test_the_same_candidate_is_judged_once_even_in_concurrent_requests(pool: Pool) -> None:
    before = pool.stats()
    code = CODE + "# once"
    async with anyio.create_task_group() as tg:
        for _ in range(5):
            tg.start_soon(pool.judge, PROBLEM, code)
    after = pool.stats()
    assert after.num_judged - before.num_judged == 1
    assert after.num_cached - before.num_cached == 4
    assert sum(after.busy_s.values()) > sum(before.busy_s.values())


async def test_a_reference_that_fails_is_unjudgeable_and_no_fault(pool: Pool) -> None:
    broken = Problem(problem_id="b", source=SOURCE + "1 / 0", family="", level=1, split=Split.GRPO)
    for _ in range(2):
        before = pool.stats().num_infra
        assert (await pool.judge(broken, CODE)).status is Status.UNJUDGEABLE
        assert pool.stats().num_infra == before


async def test_a_timeout_is_shared_with_waiting_requests_but_not_cached(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was busy once does not fail a kernel for the whole run."""
    num_judged = 0

    async def judge(request: JudgeRequest) -> Verdict:
        nonlocal num_judged
        num_judged += 1
        await anyio.sleep(0.01)
        return Verdict(status=Status.TIMEOUT, reason="deadline:correct", detail="")

    monkeypatch.setattr(pool._judges, "judge", judge)
    for expected in (1, 2):
        async with anyio.create_task_group() as tg:
            for _ in range(5):
                tg.start_soon(pool.judge, PROBLEM, CODE + "# late")
        assert num_judged == expected


async def test_a_zygote_that_dies_is_replaced(pool: Pool, observer: Observer) -> None:
    judge = observer.pids[-1]
    children = descendants(judge) - {judge}
    for pid in sorted(children)[:1]:
        os.kill(pid, signal.SIGKILL)
    await wait_until_gone(children)
    assert (await pool.judge(PROBLEM, CODE + "# again")).status is Status.CORRECT
    assert observer.pids[-1] == judge


async def test_a_killed_judge_leaves_no_process_and_its_request_is_judged_again(
    pool: Pool, observer: Observer
) -> None:
    judge = observer.pids[-1]
    verdicts = []

    async def ask() -> None:
        verdicts.append(await pool.judge(PROBLEM, BUSY))

    async with anyio.create_task_group() as tg:
        tg.start_soon(ask)
        with anyio.fail_after(5):
            family = set[int]()
            while len(family) < 4:  # judge, launcher, zygote, runner
                await anyio.sleep(0.02)
                family = descendants(judge)
        os.kill(judge, signal.SIGKILL)
        await wait_until_gone(family)
    assert verdicts[0].status is Status.CORRECT
    assert observer.pids[-1] != judge


@pytest.mark.slow
async def test_no_process_remains_after_the_supervisor_is_killed() -> None:
    program = f"""
import anyio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from forge.config.schema import JudgeTable
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split
problem = Problem(problem_id="p", source={SOURCE!r}, family="", level=1, split=Split.GRPO)
async def main():
    with open_socket_dir() as folder:
        async with open_pool(JudgeTable(workers=1), socket_dir=folder, log_dir=folder) as pool:
            await pool.judge(problem, {CODE!r})
            print("up", flush=True)
            await pool.judge(problem, {SPIN!r})
anyio.run(main)
"""
    command = [sys.executable, "-c", program]
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(60):
            assert (await process.stdout.receive()).startswith(b"up")
        await anyio.sleep(0.5)
        family = descendants(process.pid)
        assert len(family) >= 5
        process.kill()
        await process.wait()
        await wait_until_gone(family - {process.pid})


@pytest.mark.slow
async def test_a_judge_without_isolation_works_if_the_config_allows_it() -> None:
    table = JudgeTable(isolation="none", workers=1)
    with open_socket_dir() as folder:
        async with open_pool(table, socket_dir=folder, log_dir=folder) as alone:
            verdict = await alone.judge(PROBLEM, CODE)
    assert verdict.status is Status.CORRECT
    assert verdict.isolation == "none"


async def test_a_machine_without_a_sandbox_is_a_machine_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a user namespace without mapped users no other namespace can be made."""

    def in_such_a_namespace(name: str, **how: Any) -> ChildSpec:
        spec = judge_spec(name, **how)
        return replace(spec, argv=("unshare", "-U", *spec.argv))

    monkeypatch.setattr(pool_module, "judge_spec", in_such_a_namespace)
    message = (
        r"^judge-0: no sandbox for candidates on this machine: .*unshare .*not permitted; .*none"
    )
    expected = pytest.RaisesGroup(
        pytest.RaisesExc(MachineError, match=message), flatten_subgroups=True
    )
    table = TABLE.model_copy(update={"isolation": "namespaces"})
    with open_socket_dir() as folder, expected:
        async with open_pool(table, socket_dir=folder, log_dir=tmp_path):
            pass
