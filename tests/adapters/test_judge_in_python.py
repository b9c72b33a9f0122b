"""`forge.judge`, `forge.ajudge`, `forge.judges`: verdicts in Python, in order, in notebooks."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import forge
from forge.adapters import pools
from forge.adapters.answering import Answering
from forge.errors import ConfigError, MachineError
from forge.records.problem import ReferenceModule
from tests.adapters.kernels import ANSWER, BROKEN, CHEAT, PROBLEM, RIGHT, WRONG, numbered

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "right": (RIGHT, "correct", "ok"),
    "whole answer": (ANSWER, "correct", "ok"),
    "wrong": (WRONG, "wrong", "mismatch"),
    "broken": (BROKEN, "compile_error", "not_triton"),
    "cheat": (CHEAT, "rejected", "torch_work"),
    "prose": ("I cannot do this.", "rejected", "no_code_block"),
    "no end": ("<think>\nFirst", "rejected", "unclosed_thinking"),
    "syntax": ("class ModelNew(:\n", "compile_error", "syntax_error"),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[forge.JudgePool]:
    settings = {"also": ["kernelbench"]}
    with forge.judges(device="cpu", workers=1, settings=settings) as pool:
        yield pool


@pytest.mark.parametrize("name", EXPECTED)
def test_each_kind_of_answer_gets_its_verdict(name, pool):
    answer, status, reason = EXPECTED[name]
    verdict = pool.judge(PROBLEM, answer)
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.correct == (status == "correct")
    assert verdict.scored
    assert not verdict.infra
    assert f"judge> {status}: {reason}" in verdict.feedback
    assert forge.Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_a_verdict_has_the_code_and_every_protocol(pool):
    verdict = pool.judge(PROBLEM, ANSWER)
    assert verdict.code == RIGHT
    assert {name: one.correct for name, one in verdict.by_protocol.items()} == {
        "forge": True, "kernelbench": True,
    }  # fmt: skip
    assert verdict.compiled
    assert verdict.own_share == 1.0
    assert verdict.num_launches == 1
    assert verdict.speedup is None
    assert verdict.device == "cpu"


def test_verdicts_come_in_the_order_of_the_pairs(pool):
    answers = [numbered(number) for number in range(12)]
    verdicts = list(pool.judge_many((PROBLEM, answer) for answer, _ in answers))
    assert [(one.code, one.status) for one in verdicts] == answers


def test_a_pair_that_cannot_be_read_is_reported_before_anything_is_judged(pool):
    with pytest.raises(ConfigError, match=r"problem: nowhere\.py: no such file"):
        pool.judge_many([(PROBLEM, RIGHT), ("nowhere.py", RIGHT)])


def test_it_works_inside_a_running_loop_as_in_a_notebook(pool):
    async def cell() -> tuple[str, str]:
        waiting = pool.ajudge(PROBLEM, WRONG)
        return pool.judge(PROBLEM, RIGHT).status, (await waiting).status

    assert asyncio.run(cell()) == ("correct", "wrong")


def test_verdicts_that_nobody_takes_hold_up_nothing(pool):
    verdicts = pool.judge_many([(PROBLEM, numbered(number)[0]) for number in range(100, 160)])
    next(verdicts)
    del verdicts
    began = time.monotonic()
    assert pool.judge(PROBLEM, RIGHT).correct
    assert time.monotonic() - began < 20


class _Slow(Answering):
    """Judges nothing, for ever."""

    async def judge(
        self, problem: ReferenceModule, answer: str, *, is_timed: bool = True
    ) -> forge.Verdict:
        await anyio.sleep_forever()
        raise AssertionError


def test_a_pool_that_closes_ends_what_it_judges_and_takes_no_more(pool, monkeypatch):
    @asynccontextmanager
    async def open_slow(*_: object) -> AsyncGenerator[Answering]:
        async with anyio.create_task_group():  # as `open_pool`, which wraps errors in groups
            yield _Slow(pool._answering.pool, pool._answering.table, pool._answering.prompts)

    monkeypatch.setattr(pools, "open_answering", open_slow)
    errors: list[str] = []

    def ask(slow: forge.JudgePool) -> None:
        with pytest.raises(ConfigError) as caught:
            slow.judge(PROBLEM, RIGHT)
        errors.append(str(caught.value))

    with forge.judges(device="cpu") as slow:
        verdicts = slow.judge_many([(PROBLEM, RIGHT)] * 100)
        waiting = threading.Thread(target=ask, args=(slow,))
        waiting.start()
    waiting.join(timeout=10)
    closed = "judges: this pool is closed; judge inside its with block"
    assert errors == [closed]
    with pytest.raises(ConfigError, match=closed):
        next(verdicts)
    with pytest.raises(ConfigError, match=closed):
        slow.judge(PROBLEM, RIGHT)

    def leave_with_an_error() -> None:
        with forge.judges(device="cpu"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):  # as it was raised, not in a group
        leave_with_an_error()


MISTAKES = {
    "device": ({"device": "tpu"}, ConfigError, "device tpu: one of auto, cpu, cuda, cuda:N"),
    "no such card": ({"device": "cuda:99"}, MachineError, "device cuda:99: this machine has"),
    "protocol": ({"protocol": "kb"}, ConfigError, "protocol kb: one of forge, kernelbench"),
    "policy": ({"policy": "any"}, ConfigError, "policy any: one of own, hybrid"),
    "timeout": ({"timeout": -1}, ConfigError, "timeout -1: seconds above 0, at most 86400"),
    "key": ({"settings": {"num_input": 3}}, ConfigError, "judge.num_input: unknown key"),
    "value": ({"settings": {"num_inputs": 99}}, ConfigError, "judge.num_inputs: found 99"),
    "own": ({"settings": {"workers": 2}}, ConfigError, r"set by forge.judges\(workers=\)"),
    "problems": ({"problems": "nowhere"}, ConfigError, "problems: nowhere: no such directory"),
    "constant": ({"overrides": {"N": [1]}}, ConfigError, r"overrides\.N: found \[1\]"),
    "constants": ({"overrides": 3}, ConfigError, "overrides: found 3; a table"),
    "no effect": ({"overrides": {"N": 1}}, ConfigError, r"overrides\.N: .* no such module const"),
    "timed": ({"device": "cpu", "timed": True}, MachineError, "timed: the judges have no GPU"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_argument_that_cannot_be_used_is_one_clear_line(name):
    given, kind, message = MISTAKES[name]

    async def cell() -> None:
        await forge.ajudge(PROBLEM, RIGHT, **given)

    with pytest.raises(kind, match=message) as caught:
        asyncio.run(cell())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "answer", "message"),
    [
        (None, RIGHT, "problem: found NoneType; a str or a Path"),
        (PROBLEM, 3, "answer: found int; a str or a Path"),
        (PROBLEM, Path("none.py"), r"none\.py: "),
    ],
)
def test_what_cannot_be_read_is_one_line_before_a_judge_starts(
    problem, answer, message, monkeypatch
):
    monkeypatch.setattr(pools, "open_answering", None)
    with pytest.raises(ConfigError, match=message) as caught:
        forge.judge(problem, answer, device="cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="workers: found 0; an integer from 1 to 1024"):
        forge.judges(device="cpu", workers=0).__enter__()


PROGRAM = """
import asyncio, os, sys
from forge import ajudge, judge, judges, reward
early = [name for name in ("anyio", "httpx", "pydantic", "torch") if name in sys.modules]
how, problem, answer = sys.argv[1:]
async def cell():
    if how == "ajudge":
        return await ajudge(problem, answer, device="cpu")
    return judge(problem, answer, device="cpu")
print(asyncio.run(cell()).reason)
print(early + [name for name in ("torch", "triton", "transformers") if name in sys.modules])
print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split())
"""


@pytest.mark.parametrize("how", ["ajudge", pytest.param("judge", marks=pytest.mark.long)])
def test_one_call_in_a_loop_imports_no_torch_and_leaves_no_process(how):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, PROBLEM, CHEAT],
        capture_output=True, text=True, timeout=100, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["torch_work", "[]", "[]"]
