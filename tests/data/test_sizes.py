"""Sizes for a GPU: large enough for timing, small enough for memory."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families.sizes import Scale, product, scale_of
from forge.data.generator import Composition, Style, answer, generate_problems, sizes_of

if TYPE_CHECKING:
    from forge.records import Problem

H200_BYTES_PER_S = 4.8e12
H200_TF32_FLOPS = 495e12


@pytest.fixture(scope="module")
def large() -> list[Problem]:
    return generate_problems(ProblemsTable(sizes="gpu"), seed=0)


def _tensor_bytes(problem: Problem) -> list[int]:
    """Elements of inputs and output."""
    sizes = sizes_of(problem)
    if problem.family == "matmul":
        m, n, k = sizes["M"], sizes["N"], product(sizes)
        return [4 * m * k, 4 * k * n, 4 * m * n]
    rows = sizes.get("ROWS", 1)
    full = 4 * rows * product(sizes)
    return [full, 4 * rows if problem.family == "reduction" else full]


def test_a_fused_kernel_at_gpu_scale_cannot_run_faster_than_17_us(large: list[Problem]) -> None:
    for problem in large:
        if problem.family == "matmul":
            m, n, k = (sizes_of(problem)[name] for name in ("M", "N", "DIM"))
            seconds = 2 * m * n * k * sizes_of(problem)["HEADS"] / H200_TF32_FLOPS
        else:
            seconds = sum(_tensor_bytes(problem)) / H200_BYTES_PER_S
        assert 17e-6 < seconds < 100e-6, problem.problem_id


def test_no_tensor_at_gpu_scale_is_too_large_for_a_24_gb_card(large: list[Problem]) -> None:
    assert max(max(_tensor_bytes(problem)) for problem in large) <= 150_000_000


def test_offsets_at_gpu_scale_fit_32_bits(large: list[Problem]) -> None:
    assert max(max(_tensor_bytes(problem)) // 4 for problem in large) < 2**31


def test_sizes_determine_the_scale(large: list[Problem]) -> None:
    small = generate_problems(ProblemsTable(), seed=0)
    assert {scale_of(sizes_of(problem)) for problem in small} == {Scale.SMALL}
    assert {Composition.of(problem).scale for problem in large} == {Scale.GPU}


def test_the_same_compositions_are_drawn_at_both_scales(large: list[Problem]) -> None:
    small = generate_problems(ProblemsTable(), seed=0)
    ids = [(p.problem_id, p.split, p.level) for p in small]
    assert ids == [(p.problem_id, p.split, p.level) for p in large]


def test_rows_at_gpu_scale_start_at_multiples_of_16_and_fit_registers(large: list[Problem]) -> None:
    for problem in large:
        assert product(sizes_of(problem)) % 16 == 0
        if "ROWS" in sizes_of(problem):
            assert 1024 <= product(sizes_of(problem)) <= 8192


def test_sizes_at_gpu_scale_are_too_many_to_memorise(large: list[Problem]) -> None:
    products = {product(sizes_of(p)) for p in large if p.family == "softmax"}
    assert len(products) > 150
    shapes = {tuple(sizes_of(p).values()) for p in large}
    assert len(shapes) > 0.95 * len(large)


def test_a_static_matmul_at_gpu_scale_covers_its_result_with_tiles(large: list[Problem]) -> None:
    for problem in [p for p in large if p.family == "matmul"][:50]:
        code = answer(problem, style=Style.STATIC)
        grid = re.search(r"kernel\[\((\d+), (\d+)\)\]", code)
        assert grid
        sizes = sizes_of(problem)
        assert [int(n) for n in grid.groups()] == [
            math.ceil(sizes["M"] / 128),
            math.ceil(sizes["N"] / 128),
        ]
