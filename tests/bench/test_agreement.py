"""The comparison with KernelBench's evaluation: its variants, its processes, its disagreements.

KernelBench itself needs a GPU; a module of the same name stands for it here.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from bench.agreement import Answer, Case, cases, disagreements, evaluate_all, scaled

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) - 1, mask=i < n)
"""
EVALUATION = """
import os
from types import SimpleNamespace

def eval_kernel_against_ref(reference, code, **options):
    print("noise on stdout")
    assert options["num_correct_trials"] == 5
    if code == "dies":
        os._exit(3)
    if code == "raises":
        raise ValueError("no kernel")
    return SimpleNamespace(compiled=True, correctness=code == "right", metadata={})
"""
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return x + y

def get_inputs():
    return [torch.rand(4), torch.ones(4{dtype})]

def get_init_inputs():
    return []
"""


def write_checkout(folder: Path) -> None:
    """A package `kernelbench` with EVALUATION."""
    package = folder / "src" / "kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "eval.py").write_text(EVALUATION)


def test_the_stored_value_is_multiplied_and_nothing_else() -> None:
    changed = scaled(KERNEL, 1.01)
    assert changed is not None
    assert "tl.store(y + i, (tl.load(x + i, mask=i < n) - 1) * 1.01, mask=i < n)" in changed
    assert scaled("desc.store([0], value)", 1.01) is None


def test_every_kernel_of_the_corpus_has_its_variants() -> None:
    found = list(cases())
    assert len(found) >= 300
    assert len({case.name for case in found}) == len(found)
    for case in found:
        ast.parse(case.code)


def test_a_process_that_dies_costs_its_own_kernel_alone(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    codes = ("right", "dies", "raises", "wrong", "right")
    found = [
        Case(f"{number} {code}", REFERENCE.format(dtype=""), code)
        for number, code in enumerate(codes)
    ]
    answers = evaluate_all(found, folder=tmp_path, num=1)
    assert [answers[case.name].is_correct for case in found] == [True, False, False, False, True]
    assert answers["1 dies"].detail == "the process ended (3)"
    assert answers["2 raises"].detail == "ValueError: no kernel"


def test_a_problem_that_kernelbench_changes_is_marked(tmp_path: Path) -> None:
    write_checkout(tmp_path)
    dtypes = {"floats": "", "indices": ", dtype=torch.int64", "half": ", dtype=torch.float16"}
    sources = {name: REFERENCE.format(dtype=dtype) for name, dtype in dtypes.items()}
    sources["in place"] = sources["floats"].replace("x + y", "x.add_(y)")
    found = [Case(name, source, "right") for name, source in sources.items()]
    answers = evaluate_all(found, folder=tmp_path, num=1)
    assert [answers[name].is_other for name in sources] == [False, True, True, True]


def test_a_disagreement_shows_both_results() -> None:
    yes, no = Answer(True, "a"), Answer(False, "b")
    found = disagreements({"p": yes, "q": yes, "r": no}, {"p": yes, "q": no, "r": no})
    assert [(row["name"], row["forge"], row["kernelbench"]) for row in found] == [
        ("q", "a", {"is_correct": False, "detail": "b", "is_other": False})
    ]


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.agreement import main

    monkeypatch.setattr("sys.argv", ["agreement", "--kernelbench", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no checkout" in capsys.readouterr().err
