"""Families in half precision: splits, answers, mistakes; sizes for a GPU: large enough for timing,
small enough for memory."""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable
from forge.data.families.half import Dtype, in_dtype
from forge.data.families.sizes import Scale, product, scale_of
from forge.data.generator import (
    Composition,
    Style,
    answer,
    generate_problems,
    sizes_of,
)
from forge.data.pairs.generated import break_answer
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.records import Problem

BYTES_PER_S = 4.8e12
"""Memory bandwidth: an H200."""
TF32_FLOPS = 495e12


def table(**values: Any) -> ProblemsTable:
    return ProblemsTable.model_validate(values)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    made = table(dtypes=["fp32", "fp16", "bf16"], num_problems=3200)
    return generate_problems(made, seed=0)


@pytest.fixture(scope="module")
def basic() -> list[Problem]:
    """Problems of the basic six for a GPU."""
    return generate_problems(table(sizes="gpu"), seed=0)


def test_the_problems_of_a_seed_are_those_of_earlier_versions(generated: list[Problem]) -> None:
    """Figures of runs that are recorded stay comparable. A change of this hash is a decision."""
    text = "".join(p.problem_id + p.source + p.split for p in generated)
    assert hashlib.sha256(text.encode()).hexdigest().startswith("26a30149d7704689")


def test_problems_of_all_families_and_types_differ(problems: list[Problem]) -> None:
    assert len({p.problem_id for p in problems}) == len({p.source for p in problems}) > 3190
    assert min(Counter(p.family for p in problems).values()) >= 250
    assert {p.precision for p in problems} == {"fp32", "fp16", "bf16"}
    for problem in problems:
        assert Composition.parse(problem.problem_id).dtype == problem.precision


def test_no_composition_is_there_in_two_types(problems: list[Problem]) -> None:
    kernels = [re.sub("-(fp16|bf16)$", "", problem.problem_id) for problem in problems]
    assert len(set(kernels)) == len(kernels)


def test_an_answer_in_half_precision_loads_in_fp32_what_no_product_takes() -> None:
    made = Composition.parse("broadcast-row_add-tanh-bf16")
    source = made.source(made.draw_sizes(Random(0)))
    assert source.count("dtype=torch.bfloat16)") == 2
    kernel = "\n".join(
        [
            "    q = tl.load(x_ptr + cols, mask=mask, other=0.0)",
            "    u = tl.load(y_ptr + cols, mask=mask, other=0.0)",
            "    z = tl.load(z_ptr + cols, mask=mask, other=0.0)",
            "    x = tl.dot(q, tl.trans(u))",
        ]
    )
    found = in_dtype(kernel, Dtype.BF16).splitlines()
    assert [line.endswith(".to(tl.float32)") for line in found] == [False, False, True, False]
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
        case "matmul":
            m, n, b = sizes["M"], sizes["N"], sizes.get("BATCH", 1)
            return width * b * (m * length + length * n + m * n), 2 * b * m * n * length
        case "reduction":
            channels = 1
        case _:
            channels = 2
    rows = sizes.get("BATCH", sizes.get("ROWS", 1))
    return width * channels * rows * length, 0.0


def test_a_fused_kernel_keeps_a_gpu_busy_and_fits_its_memory(basic: list[Problem]) -> None:
    """By the card's bandwidth or its TF32 rate."""
    assert {Composition.of(problem).scale for problem in basic} == {Scale.GPU}
    for problem in basic:
        moved, flops = _bytes_and_flops(problem)
        assert 17e-6 < max(moved / BYTES_PER_S, flops / TF32_FLOPS) < 100e-6, problem.problem_id
        assert moved < 300e6, problem.problem_id


def test_types_of_generated_problems_are_refused_for_files(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("")
    file = tmp_path / "x.toml"
    file.write_text(
        f'name = "x"\n[problems]\nsource = "dir"\npath = "{tmp_path}"\ndtypes=["bf16"]\n'
        '[model]\npath = "m"\n[[stage]]\nkind = "eval"\n'
    )
    with pytest.raises(ConfigError, match=r"problems.dtypes: found .* only"):
        load_experiment(file)


def test_both_scales_have_the_same_compositions_and_their_sizes_tell_the_scale(
    generated: list[Problem], basic: list[Problem]
) -> None:
    assert {scale_of(sizes_of(problem)) for problem in generated} == {Scale.SMALL}
    ids = [(p.problem_id, p.split, p.level) for p in generated]
    assert ids == [(p.problem_id, p.split, p.level) for p in basic]


def test_rows_at_gpu_scale_start_at_multiples_of_16_and_fit_registers(basic: list[Problem]) -> None:
    for problem in basic:
        assert product(sizes_of(problem)) % 16 == 0
        if "ROWS" in sizes_of(problem):
            assert 1024 <= product(sizes_of(problem)) <= 8192


def test_sizes_at_gpu_scale_are_too_many_to_memorise(basic: list[Problem]) -> None:
    products = {product(sizes_of(p)) for p in basic if p.family == "softmax"}
    assert len(products) > 150
    shapes = {tuple(sizes_of(p).values()) for p in basic}
    assert len(shapes) > 0.95 * len(basic)


def test_a_static_matmul_at_gpu_scale_covers_its_result_with_tiles(basic: list[Problem]) -> None:
    for problem in [p for p in basic if p.family == "matmul"][:50]:
        code = answer(problem, style=Style.STATIC)
        grid = re.search(r"kernel\[\((\d+), (\d+)\)\]", code)
        assert grid
        sizes = sizes_of(problem)
        assert [int(n) for n in grid.groups()] == [
            math.ceil(sizes["M"] / 128),
            math.ceil(sizes["N"] / 128),
        ]
