"""A candidate's source, checked by the judge itself before anything runs."""

from __future__ import annotations

import time

from forge.evalpool.judge.trial.source import check_source
from forge.records.reason import Reason

MODEL = "class ModelNew:\n    pass\n"
NUM_LEVELS = 19


def nested_finally() -> str:
    """Clauses one in the other, each of which Python's compiler writes twice."""
    lines = [f"{' ' * (level // 2)}{('try: pass', 'finally:')[level % 2]}" for level in range(38)]
    return "\n".join([*lines, " " * NUM_LEVELS + "x = 1", MODEL])


def test_a_source_takes_as_long_as_it_is() -> None:
    began = time.thread_time()
    assert check_source(nested_finally(), entry_point="ModelNew") is None
    assert time.thread_time() - began < 0.5


def test_what_only_the_compiler_finds_is_an_error_of_syntax() -> None:
    found = check_source(f"{MODEL}\nreturn 1\n", entry_point="ModelNew")
    assert found is not None
    assert found.reason is Reason.SYNTAX_ERROR
