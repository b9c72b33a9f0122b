"""`forge.judge`, `forge.ajudge`, `forge.judges`, `forge.reward`: problems and answers as users give
them, verdicts in Python, in order, in notebooks, and the same terms of a reward as a run's."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

import forge
from forge.adapters import pools
from forge.adapters.answering import Answering, publish
from forge.adapters.subjects import find_code, known_problems, read_answer, read_problem
from forge.config.schema import ConstantsTable, JudgeTable, RewardTable
from forge.data.problem_files import Overrides
from forge.errors import ConfigError, MachineError
from forge.records import Reason, Status, Timing, Verdict
from forge.records.problem import ReferenceModule
from forge.rollout.rewards.formulas import reward_terms
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


TIMING = Timing(
    speedup=3.0, speedup_low=2.5, candidate_us=10.0, baseline_us=30.0, candidate_spread_us=0.5,
    baseline_spread_us=0.7, achieved_gbps=900.0,
)  # fmt: skip
CORRECT = Verdict(status=Status.CORRECT, reason="ok", detail="", is_compiled=True, timing=TIMING)
VERDICTS = [
    CORRECT,
    replace(CORRECT, timing=None),
    replace(CORRECT, status=Status.WRONG, timing=None),
    replace(CORRECT, status=Status.REJECTED, timing=None, is_compiled=False),
    replace(CORRECT, status=Status.COMPILE_ERROR, timing=None, is_compiled=False),
]
WEIGHTS = {"speedup": 0.5, "rejected": -0.25, "compile_error": -0.125}


def published(verdict: Verdict) -> forge.Verdict:
    problem = ReferenceModule(problem_id="p", source="s")
    found = publish(verdict, problem=problem, code="c", feedback="f", table=JudgeTable())
    return forge.Verdict.from_json(found.to_json())


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("weights", [{}, WEIGHTS])
def test_a_reward_equals_that_of_a_run(verdict, weights):
    reward = forge.reward(published(verdict), weights)
    terms = reward_terms(verdict, RewardTable(**weights))
    assert reward.terms == terms
    assert reward.value == sum(terms.values())
    assert forge.Reward.from_json(reward.to_json()) == reward


@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.UNJUDGEABLE])
def test_a_verdict_that_says_nothing_about_the_answer_has_no_reward(status):
    verdict = published(Verdict(status=status, reason="no_judge", detail=""))
    assert not verdict.scored
    assert verdict.infra == (status is Status.INFRA_ERROR)
    reward = forge.reward(verdict)
    assert reward.value is None
    assert reward.terms == {}


def test_a_weight_that_does_not_exist_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"weights\.corect: unknown key; did you mean correct\?"):
        forge.reward(published(CORRECT), {"corect": 1.0})


FENCED = f"```python\n{RIGHT}```\n"
CODE = {
    "code": (RIGHT, RIGHT),
    "whole answer": (ANSWER, RIGHT),
    "fence": (FENCED, RIGHT),
    "code with a fence in a comment": (f'"""\n```\nx\n```\n"""\n{RIGHT}', None),
    "code with an answer in a string": (f"""{RIGHT}\nEXAMPLE = '''\n{ANSWER}\n'''\n""", None),
    "code with its name alone": ("import torch\nModelNew = torch.nn.ReLU\n", None),
    "code with a mistake": ("class ModelNew(:\n", None),
    "code without the entry point": ("class Other: ...\n", None),
}
NO_CODE = {
    "prose": ("Sorry, no.", Reason.NO_CODE_BLOCK),
    "nothing": ("", Reason.NO_CODE_BLOCK),
    "half a block": (FENCED[:-4], Reason.NO_CODE_BLOCK),
    "thinking without end": (f"<think>\n{FENCED}", Reason.UNCLOSED_THINKING),
    "CUDA": ("Kernel: ```cuda\n__global__ void f() {}\n```", Reason.CUDA_SOURCE),
    "CUDA without a fence": ("__global__ void f() {}", Reason.CUDA_SOURCE),
    "another class": ("```python\nclass Other: ...\n```\n", Reason.NO_ENTRY_POINT),
    "bare code behind thinking": (f"<think>\nx\n</think>\n{RIGHT}", Reason.NO_CODE_BLOCK),
}


@pytest.mark.parametrize("name", CODE)
def test_the_code_of_an_answer_is_found(name):
    answer, code = CODE[name]
    assert find_code(answer, entry_point="Model").code == (answer if code is None else code)


@pytest.mark.parametrize("name", NO_CODE)
def test_an_answer_without_code_has_the_reason_of_the_training_loop(name):
    answer, reason = NO_CODE[name]
    assert find_code(answer, entry_point="Model").reason is reason


def test_a_string_is_never_read_as_a_file(tmp_path, monkeypatch, caplog):
    """A model could name a file with a correct kernel."""
    monkeypatch.chdir(tmp_path)
    Path("best.py").write_text(RIGHT)
    with caplog.at_level(logging.WARNING):
        assert read_answer("best.py") == "best.py"
    assert "Path('best.py') reads a file" in caplog.text
    assert read_answer(Path("best.py")) == RIGHT


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    for name in ("level1/19_ReLU.py", "level2/19_Conv.py"):
        path = tmp_path / "bench" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"# {name}\n{PROBLEM}")
    return tmp_path / "bench"


def test_a_problem_is_a_path_a_source_or_a_name(bench):
    path = bench / "level1" / "19_ReLU.py"
    assert read_problem(path).source == read_problem(str(path)).source == path.read_text()
    assert read_problem(PROBLEM).source == PROBLEM
    assert "class Model(" in read_problem("def f(x): return torch.relu(x)").source
    known = known_problems(bench)
    assert read_problem("level=2 problem_id=19", known=known).problem_id == "level2/19_Conv"
    assert read_problem("level1/19_ReLU", known=known).source == path.read_text()
    assert read_problem(PROBLEM, known=known).source == PROBLEM
    problem = read_problem(PROBLEM)
    assert read_problem(problem) is problem


def test_a_problem_that_is_none_is_one_clear_line(bench):
    known = known_problems(bench)
    for problem, message in {
        "nowhere.py": "problem: nowhere.py: no such file; a path, the source of a problem",
        "": "problem: found an empty text",
        "x" * 5000: "no such file",
        "#\n" * (1 << 20): "characters; 1048576 are allowed",
        "a\0b": "no such file",
        str(bench): "has several problems; pass it as problems=",
        "def f(:\n": r"problem\.py:1: no Python",
        "x = 1\n": "0 functions and no problem",
    }.items():
        with pytest.raises(ConfigError, match=message) as caught:
            read_problem(problem)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match=r"19: .* has no single problem of this name or number"):
        read_problem("19", known=known)


def test_constants_of_a_problem_are_overridden_wherever_it_comes_from(bench):
    source, path = f"N = 2\nM = 3\n{PROBLEM}", bench / "level1" / "19_ReLU.py"
    path.write_text(source)
    known = known_problems(bench)
    table: ConstantsTable = {"N": 5, "level2/19_Conv": {}, "19_ReLU": {"M": 7}}
    wanted = source.replace("N = 2", "N = 5").replace("M = 3", "M = 7")
    both = Overrides.from_table(table)
    assert read_problem("level1/19_ReLU", known=known, overrides=both).source == wanted
    everywhere = Overrides(everywhere={"N": 5, "M": 7})
    for problem in (path, source):
        assert read_problem(problem, overrides=everywhere).source == wanted
        with pytest.raises(ConfigError, match=r"overrides\.K: .* no such module constant"):
            read_problem(problem, overrides=Overrides(everywhere={"K": 1}))
    with pytest.raises(ConfigError, match="read before keeps its constants"):
        read_problem(read_problem(PROBLEM), overrides=everywhere)
