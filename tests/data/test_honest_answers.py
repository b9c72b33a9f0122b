"""Every family's honest answer is right in the interpreter and compiles for a GPU. The judge lowers
and runs them in `tests/evalpool/test_families.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families.sizes import Scale
from forge.data.generator import (
    Composition,
    Style,
    answer,
    answer_to,
    generate_problems,
    sizes_of,
)

if TYPE_CHECKING:
    from forge.records import Problem

CHILD = Path(__file__).with_name("honest_answers_child.py")


def _one_of_each() -> list[Problem]:
    """A problem of each family and variant, of each operation, and of each length."""
    chosen: dict[object, Problem] = {}
    for problem in generate_problems(ProblemsTable(), seed=1):
        composition = Composition.parse(problem.problem_id)
        chosen.setdefault((composition.family, composition.variant), problem)
        for op in composition.chain:
            chosen.setdefault(op, problem)
    return list({p.problem_id: p for p in chosen.values()}.values())


def _jobs(problem: Problem) -> list[tuple[str, str, str]]:
    """The problem's answer in each style and at both scales. Answers for a GPU must be right at
    small sizes, too, since sizes are constants of both."""
    large = replace(Composition.of(problem), scale=Scale.GPU)
    answers = {
        "dynamic": answer(problem),
        "static": answer(problem, style=Style.STATIC),
        "dynamic for a GPU": answer_to(large),
        "static for a GPU": answer_to(large, sizes=sizes_of(problem)),
    }
    return [(f"{problem.problem_id} {name}", problem.source, a) for name, a in answers.items()]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", ["run", "compile"])
def test_honest_answers_are_right_and_compile(check: str, tmp_path: Path) -> None:
    problems = _one_of_each()
    assert len(problems) >= 30
    jobs = tmp_path / "jobs.json"
    chosen = [job for problem in problems for job in _jobs(problem)]
    jobs.write_text(json.dumps(chosen))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    if check == "run":
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, str(CHILD), check, str(jobs)],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}
