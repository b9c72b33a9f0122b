"""Texts of kernels: those that do not fit their program are refused, and none is kept for long."""

import ast
import gc
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from forge.evalpool.judge.program.dataflow import Access
from forge.evalpool.judge.program.format import Program
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.trial import programs
from forge.evalpool.judge.trial.host_parts import check_source
from forge.evalpool.judge.trial.programs import MAX_KEPT_CHARACTERS, MAX_KERNELS
from forge.evalpool.judge.trial.trial import Candidate, Decided
from forge.records.reason import Reason
from tests.evalpool.benches import TABLE, make_problem
from tests.evalpool.program.programs import addition

# pyright: strict


TTIR = """\
module {
  tt.func public @add(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) {
    %0 = tt.load %x : !tt.ptr<f32>
    tt.store %y, %0 : !tt.ptr<f32>
    tt.return
  }
}
"""


def require_structure(program: Program) -> None:
    none: Any = None
    programs.Programs(
        candidate=Candidate(problem=make_problem("class Model: ..."), code=""), table=TABLE,
        draw=none, problem=ProblemFacts(num_bytes=256), captures=none, compiler=none,
    ).require_structure(program)  # fmt: skip


def check(ttir: str) -> None:
    """Check a program of one launch whose kernel has this text."""
    program = addition()
    (kernel,) = program.kernels
    changed = replace(program, kernels=(replace(kernel, ttir=ttir),))
    require_structure(changed)


@pytest.mark.parametrize(
    ("changed", "to"), [("@add", "@sub"), (", %n: i32", "")], ids=["name", "arguments"]
)
def test_a_text_without_the_kernel_s_function_is_no_triton(changed: str, to: str) -> None:
    with pytest.raises(Decided) as refused:
        check(TTIR.replace(changed, to))
    assert refused.value.finding.reason == Reason.NOT_TRITON


def test_a_text_of_many_kernels_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 4 MB takes seconds, and a program may have 2,000 kernels."""
    texts: list[str] = []

    def read(ttir: str, name: str) -> programs.Text:
        texts.append(ttir)
        return (Access.READ, Access.WRITE, Access.NONE), frozenset()

    monkeypatch.setattr(programs, "_read_text", read)
    program = addition()
    long = TTIR + " " * MAX_KEPT_CHARACTERS
    kernels = (replace(program.kernels[0], ttir=long),) * 2000
    require_structure(replace(program, kernels=kernels))
    assert texts == [long]


@pytest.mark.parametrize(
    ("count", "characters", "kept"),
    [
        (4 * MAX_KERNELS, 20_000, 1.5 * MAX_KERNELS * 20_000),
        (16, MAX_KEPT_CHARACTERS + 1, MAX_KEPT_CHARACTERS),
    ],
    ids=["usual texts", "long texts"],
)
def test_the_texts_of_seen_kernels_are_forgotten(count: int, characters: int, kept: float) -> None:
    check(TTIR)
    tracemalloc.start()
    try:
        for number in range(1, count):
            check(f"// {number}\n{TTIR}".ljust(characters))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < kept
    finally:
        tracemalloc.stop()


def test_all_kernels_of_a_program_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second or two of the judge's own time, of which a program has 2,000."""
    monkeypatch.setattr(programs, "MAX_READ_S", -1.0)
    with pytest.raises(Decided) as caught:
        check(TTIR)
    assert caught.value.finding.reason is Reason.UNSUPPORTED


MODEL = "class ModelNew:\n    pass\n"


def test_a_source_takes_as_long_as_it_is() -> None:
    """Clauses one in the other, each of which Python's compiler writes twice."""
    lines = [f"{' ' * (level // 2)}{('try: pass', 'finally:')[level % 2]}" for level in range(38)]
    source = "\n".join([*lines, " " * 19 + "x = 1", MODEL])
    began = time.thread_time()
    assert check_source(source, entry_point="ModelNew") is None
    assert time.thread_time() - began < 0.5


def test_what_only_the_compiler_finds_is_an_error_of_syntax() -> None:
    found = check_source(f"{MODEL}\nreturn 1\n", entry_point="ModelNew")
    assert found is not None
    assert found.reason is Reason.SYNTAX_ERROR


def test_trees_of_earlier_sources_are_forgotten() -> None:
    for number in range(9):
        assert check_source(f"{MODEL}EARLIER = {number}\n", entry_point="ModelNew") is None
    trees = [ast.dump(one) for one in gc.get_objects() if isinstance(one, ast.Module)]
    assert sum("EARLIER" in one for one in trees) <= 4
