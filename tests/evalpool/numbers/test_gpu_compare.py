"""The comparison that runs on GPUs says what the one on CPUs says. Needs no GPU."""

from __future__ import annotations

import pytest
import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers import blocks, gpu_compare, slabs
from forge.evalpool.judge.numbers.compare import Expected, mismatch
from forge.evalpool.judge.numbers.slabs import largest_by_slab

KINDS = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.bool),
]


def both(got: torch.Tensor, expected: torch.Tensor, error: torch.Tensor) -> set[str | None]:
    """The first lines of both."""
    spec = TensorSpec(str(expected.dtype).removeprefix("torch."), tuple(expected.shape))
    made = Expected.make(spec, _bytes(expected), error=_bytes(error), precision="fp32")
    allowed = gpu_compare.Allowed.of(expected, error, precision="fp32")
    found = gpu_compare.mismatch(got, expected, allowed=allowed)
    return {one and one.split("\n")[0] for one in (mismatch(made, _bytes(got)), found)}


def packed(error: torch.Tensor) -> torch.Tensor:
    """Errors by element as the oracle sends them."""
    return largest_by_slab(tuple(error.shape), lambda b: error[b], device=error.device).pack()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_both_say_the_same(kind: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CACHED", 7)
    torch.manual_seed(seed)
    shape = [(5, 6), (32, 20), (2, 20, 70), (3, 1, 4, 5)][seed]
    expected = (torch.randn(shape) * 10).to(kind)
    error = packed(torch.rand(shape) * 1e-3) if seed % 2 else torch.zeros(0)
    assert both(expected.clone(), expected, error) == {None}
    wrong = expected.clone()
    wrong[1, 0] = (wrong[1, 0].float() * 2 + 100).to(kind)
    if kind is torch.bool:
        wrong = ~expected
    found = both(wrong, expected, error)
    assert len(found) == 1
    assert None not in found


def test_both_name_a_pattern_from_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CACHED", 300)
    a, b = torch.randn(2, 40, 40)
    tail = torch.arange(1600).view(40, 40) >= 1590
    for wrong, fact in (
        (a[:, :32] @ b[:32], "first 32 of 40 products"),
        ((a @ b).masked_fill(torch.arange(40) == 39, 0), "output[:, 39] (the last column)"),
        ((a @ b).masked_fill(tail, 0), "output[39, 30:]"),
        ((a @ b).masked_fill(tail, float("nan")), "output[39, 30:]"),
    ):
        spec = TensorSpec("float32", (40, 40))
        made = Expected.make(spec, _bytes(a @ b), error=b"", precision="fp32")
        allowed = gpu_compare.Allowed.of(a @ b, torch.zeros(0), precision="fp32")
        given = [gpu_compare.values_of(one, name="input") for one in (a, b)]
        found = (
            mismatch(made, _bytes(wrong), operands=lambda given=given: given),
            gpu_compare.mismatch(wrong, a @ b, allowed=allowed, operands=lambda given=given: given),
        )
        assert all(fact in str(one) for one in found), found


def test_what_is_not_finite_must_be_the_same() -> None:
    expected = torch.tensor([1.0, float("inf"), float("nan"), float("-inf")])
    assert both(expected.clone(), expected, torch.zeros(0)) == {None}
    for place in range(1, 4):
        wrong = expected.clone()
        wrong[place] = 3.0
        found = both(wrong, expected, torch.zeros(0))
        assert len(found) == 1, found
        assert f"output[{place}]: " in str(found)


@pytest.mark.parametrize(("kind", "bits"), [(torch.int32, 24), (torch.int64, 53)])
def test_integers_must_be_equal_beyond_what_a_float_holds(kind: torch.dtype, bits: int) -> None:
    expected = torch.tensor([1 << bits, 7], dtype=kind)
    assert both(expected.clone(), expected, torch.zeros(0)) == {None}
    found = both(expected + torch.tensor([1, 0], dtype=kind), expected, torch.zeros(0))
    assert len(found) == 1
    assert f"output[0]: expected {1 << bits}, got {(1 << bits) + 1}; 50% of" in str(found)


@pytest.mark.parametrize(("kind", "huge"), [(torch.float32, 3e38), (torch.float64, 1e300)])
def test_one_huge_value_does_not_let_anything_pass(kind: torch.dtype, huge: float) -> None:
    """Its square has no room in its type."""
    expected = torch.full((64,), 1.0, dtype=kind)
    expected[3] = huge
    assert slabs.root_mean_squares(expected).whole == pytest.approx(huge / 8)
    assert both(expected.clone(), expected, torch.zeros(0)) == {None}
    assert None not in both(expected * 0.5, expected, torch.zeros(0))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_a_sentinel_is_left_out_of_the_scale(kind: torch.dtype) -> None:
    scores = torch.randn(64, 64).to(kind).masked_fill(torch.ones(64, 64).triu(1) > 0, -1e9)
    (rows, _) = slabs.root_mean_squares(scores).values
    kept = [row[row > -1e8].double().square().mean().sqrt() for row in scores]
    assert torch.allclose(rows, torch.stack(kept))
    nothing = scores.where(scores < -1e8, 0.0)
    assert both(scores.clone(), scores, torch.zeros(0)) == {None}
    assert None not in both(nothing, scores, torch.zeros(0))


def test_unset_values_are_counted_over_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CACHED", 4)
    expected = torch.ones(10)
    got = torch.full((10,), float("nan"))
    got[0] = 1.0
    (words,) = both(got, expected, torch.zeros(0))
    assert words is not None
    assert "90% are NaN" in words
    assert gpu_compare.is_unwritten(torch.full((3,), float("nan")), expected[:3])
    assert not gpu_compare.is_unwritten(got, expected)


def test_an_empty_output_agrees() -> None:
    assert both(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0)) == {None}


def test_own_errors_widen_what_is_allowed() -> None:
    expected, error = torch.ones(4), packed(torch.full((4,), 0.1))
    assert both(expected + 0.3, expected, error) == {None}
    assert None not in both(expected + 0.5, expected, error)


def test_a_bool_that_nothing_wrote_is_not_true() -> None:
    """Its byte is 255."""
    right = torch.ones(64, dtype=torch.bool)
    got = torch.full((64,), 255, dtype=torch.uint8).view(torch.bool)
    allowed = gpu_compare.Allowed.of(right, torch.zeros(0), precision="fp32")
    assert gpu_compare.mismatch(right.clone(), right, allowed=allowed) is None
    assert gpu_compare.mismatch(got, right, allowed=allowed) is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_errors", [False, True])
def test_a_difference_that_every_element_may_have_is_found_near_at_once(
    kind: torch.dtype, has_errors: bool
) -> None:
    torch.manual_seed(7)
    columns = 10.0 ** torch.arange(-3, 3).repeat(8)
    expected = (torch.randn(64, 48) * columns).to(kind)
    error = packed(torch.rand(64, 48) * 1e-4 * columns) if has_errors else torch.zeros(0)
    allowed = gpu_compare.Allowed.of(expected, error, precision="fp32")
    every = tuple(slice(0, size) for size in expected.shape)
    by_element = allowed.at(every, expected)
    assert 0 < allowed.least <= float(by_element.min()) * (1 + 1e-6)
    for share, is_accepted in ((0.5, True), (1.5, False)):
        found = both(expected + share * by_element, expected, error)
        assert len(found) == 1
        assert (found == {None}) is is_accepted


def test_one_element_beyond_its_slab_is_found_though_the_others_may_differ_more() -> None:
    expected = torch.randn(64, 64)
    expected[:, 3] *= 1e-3
    allowed = gpu_compare.Allowed.of(expected, torch.zeros(0), precision="fp32")
    got = expected.clone()
    got[5, 3] += 1.1 * float(allowed.at((slice(5, 6), slice(3, 4)), expected[5:6, 3:4]))
    found = gpu_compare.mismatch(got, expected, allowed=allowed)
    assert found is not None
    assert "[5, 3]" in found
