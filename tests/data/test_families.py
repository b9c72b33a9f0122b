"""All families and half precision: keys, splits, answers, mistakes; sizes for a GPU: large enough
for timing, small enough for memory."""

from __future__ import annotations

import ast
import hashlib
import math
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
from forge.data.families.sizes import Scale, product, scale_of
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
BYTES_PER_S = {"H100": 3.35e12, "H200": 4.8e12}
TF32_FLOPS = 495e12


def table(**values: Any) -> ProblemsTable:
    return ProblemsTable.model_validate(values)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    made = table(families=["all"], dtypes=["fp32", "fp16", "bf16"], num_problems=5000)
    return generate_problems(made, seed=0)


@pytest.fixture(scope="module")
def basic() -> list[Problem]:
    """Problems of the basic six for a GPU."""
    return generate_problems(table(sizes="gpu"), seed=0)


@pytest.fixture(scope="module")
def further() -> list[Problem]:
    """Problems of the other families for a GPU."""
    made = table(families=FURTHER, dtypes=["fp32", "bf16"], sizes="gpu", num_problems=640)
    return generate_problems(made, seed=0)


def test_the_problems_of_a_seed_are_those_of_earlier_versions(generated: list[Problem]) -> None:
    """Figures of runs that are recorded stay comparable. A change of this hash is a decision."""
    text = "".join(p.problem_id + p.source + p.split for p in generated)
    assert hashlib.sha256(text.encode()).hexdigest().startswith("26a30149d7704689")


def test_the_keys_name_every_family() -> None:
    assert list(get_args(BasicFamily)) == list(BASIC)
    assert list(FAMILY_NAMES) == list(FAMILIES)
    assert len(FAMILIES) * 4 <= ProblemsTable().num_reserved


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
        case "linear" | "matmul":
            m, n, b = sizes["M"], sizes["N"], sizes.get("BATCH", 1)
            return width * b * (m * length + length * n + m * n), 2 * b * m * n * length
        case "attention":
            b, s = sizes["BATCH"], sizes["SEQ"]
            return 4 * width * b * s * length, 4 * b * s * s * length
        case "convolution":
            channels = sizes["IN"] + sizes.get("OUT", sizes["IN"])
        case "pooling" | "channel_norm":
            channels = sizes["CHANNELS"] * (1 if problem.family == "pooling" else 2)
        case "loss" | "reduction":
            channels = 1
        case _:
            channels = 2
    rows = sizes.get("BATCH", sizes.get("ROWS", 1))
    has_places = Composition.of(problem).variant in ("gather", "scatter", "scatter_add")
    return (width * channels + 8 * has_places) * rows * length, 0.0


@pytest.mark.parametrize(
    ("made", "card", "shortest_us", "longest_us", "most_bytes"),
    [("basic", "H200", 17, 100, 300e6), ("further", "H100", 16, 300, 576e6)],
)
def test_a_fused_kernel_keeps_a_gpu_busy_and_fits_its_memory(
    made: str, card: str, shortest_us: int, longest_us: int, most_bytes: float,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """By the card's bandwidth or its TF32 rate, the same in half precision."""
    large: list[Problem] = request.getfixturevalue(made)
    assert {Composition.of(problem).scale for problem in large} == {Scale.GPU}
    for problem in large:
        moved, flops = _bytes_and_flops(problem)
        rate = TF32_FLOPS * (1 if problem.precision == "fp32" else 2)
        seconds = max(moved / BYTES_PER_S[card], flops / rate)
        assert shortest_us < 1e6 * seconds < longest_us, problem.problem_id
        assert moved < most_bytes, problem.problem_id


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
