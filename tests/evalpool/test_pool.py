"""The pool with real judges: their end with the supervisor, machines without a sandbox.

Restarts: test_spawner.py; caching and retries: test_pool_requests.py.
"""

import sys
from pathlib import Path

import anyio
import pytest

from forge.config.schema import JudgeTable
from forge.evalpool.pool import open_pool
from forge.process.sockets import open_socket_dir
from forge.records.verdict import Status
from tests.evalpool.judged import (
    CODE,
    PROBLEM,
    ROOT,
    SOURCE,
    descendants,
    wait_until_gone,
)

SPIN = CODE.replace("return y", "while True: pass")


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
