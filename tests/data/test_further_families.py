"""Families beyond the basic six, and half precision: keys, splits, answers, mistakes, sizes."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, get_args

import pytest

from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable
from forge.config.schema.problems import FAMILY_NAMES, BasicFamily
from forge.data.families import BASIC, FAMILIES
from forge.data.families.half import Dtype, in_dtype
from forge.data.families.sizes import Scale, product
from forge.data.generator import (
    Composition,
    Style,
    answer,
    families_of,
    generate_problems,
    sizes_of,
)
from forge.data.pairs.generated import break_answer
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.records import Problem

FURTHER = [name for name in FAMILIES if name not in BASIC]
H100_BYTES_PER_S = 3.35e12
H100_TF32_FLOPS = 495e12


def table(**values: Any) -> ProblemsTable:
    return ProblemsTable.model_validate(values)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    made = table(families=["all"], dtypes=["fp32", "fp16", "bf16"], num_problems=5000)
    return generate_problems(made, seed=0)


@pytest.fixture(scope="module")
def large() -> list[Problem]:
    made = table(families=FURTHER, dtypes=["fp32", "bf16"], sizes="gpu", num_problems=640)
    return generate_problems(made, seed=0)


def test_the_problems_of_a_seed_are_those_of_earlier_versions() -> None:
    """Figures of runs that are recorded stay comparable. A change of this hash is a decision."""
    text = "".join(p.problem_id + p.source + p.split for p in generate_problems(table(), seed=0))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("26a30149d7704689")


def test_the_keys_name_every_family() -> None:
    assert list(get_args(BasicFamily)) == list(BASIC)
    assert list(FAMILY_NAMES) == list(FAMILIES)
    assert len(FAMILIES) * 4 <= ProblemsTable().num_heldout


def test_five_thousand_problems_of_all_families_and_types_differ(problems: list[Problem]) -> None:
    assert len({p.problem_id for p in problems}) == len({p.source for p in problems}) == 5000
    assert min(Counter(p.family for p in problems).values()) >= 250
    assert {p.precision for p in problems} == {"fp32", "fp16", "bf16"}
    for problem in problems:
        assert Composition.parse(problem.problem_id).dtype == problem.precision


def test_no_composition_is_there_in_two_types(problems: list[Problem]) -> None:
    kernels = [re.sub("-(fp16|bf16)$", "", problem.problem_id) for problem in problems]
    assert len(set(kernels)) == len(kernels)


def test_chosen_families_are_the_only_ones() -> None:
    made = generate_problems(table(families=["scan", "softmax", "scan"], num_problems=80), seed=0)
    assert {problem.family for problem in made} == {"scan", "softmax"}
    assert families_of(table(families=["scan", "basic"])) == [*BASIC, "scan"]


def test_too_few_heldout_problems_for_the_chosen_families_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 64"):
        generate_problems(table(families=["all"], num_heldout=63), seed=0)


def test_an_answer_in_half_precision_loads_in_fp32_what_no_product_takes() -> None:
    made = Composition.parse("attention-causal-tanh-bf16")
    source = made.source(made.draw_sizes(Random(0)))
    assert source.count("dtype=torch.bfloat16)") == 3
    assert "dtype=torch.bool, device=x.device).triu(1)" in source
    kernel = "\n".join(
        [
            "    i = tl.load(i_ptr + row)",
            "    q = tl.load(x_ptr + cols, mask=mask, other=0.0)",
            "    u = tl.load(y_ptr + cols, mask=mask, other=0.0)",
            "    z = tl.load(z_ptr + cols, mask=mask, other=0.0)",
            "    x = tl.dot(q, tl.trans(u))",
        ]
    )
    found = in_dtype(kernel, Dtype.BF16).splitlines()
    assert [line.endswith(".to(tl.float32)") for line in found] == [False] * 3 + [True, False]
    assert in_dtype(kernel, Dtype.FP32) == kernel


def test_sources_are_python_and_static_answers_read_no_shape(problems: list[Problem]) -> None:
    for problem in problems[::25]:
        ast.parse(problem.source)
        assert ("dtype=torch.bfloat16" in problem.source) == (problem.precision == "bf16")
        ast.parse(answer(problem))
        code = answer(problem, style=Style.STATIC)
        ast.parse(code)
        assert "shape" not in code.split("def forward")[1]


@pytest.mark.parametrize("style", list(Style))
def test_every_answer_can_be_broken(problems: list[Problem], style: Style) -> None:
    rng = Random(0)
    for problem in problems[::20]:
        broken = break_answer(problem, style=style, rng=rng)
        assert broken != answer(problem, style=style)


def _bytes_and_flops(problem: Problem) -> tuple[float, float]:
    """A fused kernel's traffic, and what its products compute."""
    sizes, width = sizes_of(problem), 4 if problem.precision == "fp32" else 2
    length = product(sizes)
    match problem.family:
        case "linear":
            m, n, b = sizes["M"], sizes["N"], sizes.get("BATCH", 1)
            return width * b * (m * length + length * n + m * n), 2 * b * m * n * length
        case "attention":
            b, s = sizes["BATCH"], sizes["SEQ"]
            return 4 * width * b * s * length, 4 * b * s * s * length
        case "convolution":
            channels = sizes["IN"] + sizes.get("OUT", sizes["IN"])
        case "pooling" | "channel_norm":
            channels = sizes["CHANNELS"] * (1 if problem.family == "pooling" else 2)
        case "loss":
            channels = 1
        case _:
            channels = 2
    rows = sizes.get("BATCH", sizes.get("ROWS", 0))
    has_places = Composition.of(problem).variant in ("gather", "scatter", "scatter_add")
    return (width * channels + 8 * has_places) * rows * length, 0.0


def test_a_further_family_keeps_a_gpu_busy_and_fits_its_memory(large: list[Problem]) -> None:
    """At least 16 us of an H100's bandwidth or of its TF32 rate, the same in half precision."""
    assert {Composition.of(problem).scale for problem in large} == {Scale.GPU}
    for problem in large:
        moved, flops = _bytes_and_flops(problem)
        rate = H100_TF32_FLOPS * (1 if problem.precision == "fp32" else 2)
        seconds = max(moved / H100_BYTES_PER_S, flops / rate)
        assert 16e-6 < seconds < 300e-6, problem.problem_id
        assert moved < 4 * 144e6, problem.problem_id


@pytest.mark.parametrize("setting", ['families=["scan"]', 'dtypes=["bf16"]'])
def test_generated_problems_keys_are_refused_for_files(setting: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("")
    file = tmp_path / "x.toml"
    file.write_text(
        f'name = "x"\n[problems]\nsource = "dir"\npath = "{tmp_path}"\n{setting}\n'
        '[model]\npath = "m"\n[[stage]]\nkind = "eval"\n'
    )
    with pytest.raises(ConfigError, match=rf"problems.{setting.split('=')[0]}: found .* only"):
        load_experiment(file)
