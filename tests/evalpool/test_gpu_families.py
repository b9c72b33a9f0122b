"""Generated problems at GPU scale: honest answers of both styles are right and long enough to be
timed. Needs a GPU; `--log-cli-level=INFO` shows the times."""

import logging
from itertools import cycle
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families import FAMILIES
from forge.data.generator import Composition, Style, answer, generate_problems
from forge.records.verdict import JudgeOptions, Status

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


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
