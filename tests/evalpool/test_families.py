"""Honest answers to every family and variant of the generator are correct; styles take turns.

At GPU scale they are long enough to be timed: `--log-cli-level=INFO` shows the times."""

import logging
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families import FAMILIES
from forge.data.families.ops import Scale
from forge.data.generator import Composition, Style, answer, answer_to, generate_problems, sizes_of
from forge.evalpool.judge.reference import oracle
from forge.evalpool.judge.trial.trial import CORRECTNESS_ALONE
from forge.records import Problem, Status
from forge.records.verdict import JudgeOptions

HALF = ("fp16", "bf16")


@cache
def generated(*dtypes: str) -> list[Problem]:
    values = {"dtypes": list(dtypes), "num_problems": 1600}
    return generate_problems(ProblemsTable.model_validate(values), seed=1)


def drawn(family: str, *dtypes: str) -> list[Problem]:
    """A problem of each variant, as far as those drawn have it."""
    chosen: dict[str, Problem] = {}
    for problem in generated(*dtypes):
        if problem.family == family:
            chosen.setdefault(Composition.of(problem).variant, problem)
    return list(chosen.values())


def forms(problem: Problem) -> list[str]:
    """The answer in both styles, at both scales: those for a GPU are right for small sizes, too."""
    large = replace(Composition.of(problem), scale=Scale.GPU)
    return [
        *(answer(problem, style=style) for style in Style),
        answer_to(large),
        answer_to(large, sizes=sizes_of(problem)),
    ]


def judge(bench: Any, problem: Problem, code: str) -> None:
    verdict = bench.trials.judge(problem, code, options=CORRECTNESS_ALONE)
    assert verdict.status is Status.CORRECT, f"{problem.problem_id}: {verdict.detail}\n{code}"


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_answers_are_correct(bench: Any, family: str) -> None:
    problems = drawn(family, "fp32")
    assert {Composition.of(one).variant for one in problems} == set(FAMILIES[family].variants)
    for problem, turn in zip(problems, cycle(range(4)), strict=False):
        judge(bench, problem, forms(problem)[turn])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if number % 3 == 0 else pytest.mark.long)
        for number, family in enumerate(FAMILIES)
    ],
)
def test_an_honest_answer_in_half_precision_is_correct(bench: Any, family: str) -> None:
    problem = drawn(family, *HALF)[0]
    assert problem.precision in HALF
    judge(bench, problem, answer(problem))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", *HALF])
def test_every_form_of_an_honest_answer_is_correct(bench: Any, family: str, dtype: str) -> None:
    for problem in drawn(family, dtype):
        for code in forms(problem):
            judge(bench, problem, code)


BLOCK = 64 << 20
SCRIPT = f"""
import resource
from forge.evalpool.judge.channel import heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray({BLOCK}).clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

heap.keep_freed({{num_bytes}}, memory_bytes=4 << 30)
first, again = faults(), faults()
{{between}}
print(again / first, faults() / first)
"""


def faults_of(num_bytes: int | None, *, between: str = "heap.give_back()") -> tuple[float, float]:
    """Page faults of the second block of BLOCK bytes, and of the next behind `between`: as shares
    of the first one's."""
    script = SCRIPT.format(num_bytes=num_bytes, between=between)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    again, later = map(float, found.stdout.split())
    return again, later


def test_memory_of_a_small_problem_is_used_again_until_it_is_given_back() -> None:
    again, later = faults_of(BLOCK)
    assert again < 0.1
    assert later > 0.5


def test_an_oracle_keeps_the_memory_of_a_large_draw_until_nobody_asks_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, own = socket.socketpair()
    draws = iter([oracle.LARGE_BYTES, 1, 1, None])
    seen: list[str] = []

    def draw(sock: socket.socket) -> int | None:
        seen.append("draw")
        if len(seen) == 2:
            sock.recv(1)  # nothing more is asked for
        return next(draws)

    monkeypatch.setattr(oracle, "_draw", draw)
    monkeypatch.setattr(oracle.heap, "give_back", lambda: seen.append("back"))
    monkeypatch.setattr(oracle, "KEPT_S", 0.01)
    with judge, own:
        judge.send(b"?")
        oracle.main(own)
    assert seen == ["draw", "draw", "back", "draw", "draw"]


logger = logging.getLogger(__name__)


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_honest_answers_at_gpu_scale_are_right_and_take_17_us_or_more(
    gpu_bench: Any, family: str
) -> None:
    chosen = {}
    table = ProblemsTable.model_validate({"sizes": "gpu"})
    for problem in generate_problems(table, seed=1):
        if problem.level == 3 and problem.family == family:
            chosen.setdefault(Composition.of(problem).variant, problem)
    num_judged = 0
    for problem, style in zip(chosen.values(), cycle(Style), strict=False):
        verdict = gpu_bench.judge(
            answer(problem, style=style), problem=problem.source, options=JudgeOptions()
        )
        what = f"{problem.problem_id} {style}: {verdict.reason} {verdict.detail}"
        if verdict.status is Status.UNJUDGEABLE and "ill-conditioned" in verdict.detail:
            logger.info(what)  # a cosine of a square, behind a product in TF32: nobody is judged
            continue
        num_judged += 1
        assert verdict.status is Status.CORRECT, what
        assert verdict.timing is not None, what
        logger.info(
            "%s %s: %.0f us, eager %.0f us",
            *(problem.problem_id, style),
            *(verdict.timing.candidate_us, verdict.timing.baseline_us),
        )
        assert verdict.timing.candidate_us > 17, what
    assert num_judged
