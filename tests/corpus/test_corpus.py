"""Honest candidates are captured, not refused, and compute what their problem does."""

import pytest

import forge
from tests.corpus.corpus import load

PAIRS = load()
QUICK = {
    "activations/swiglu",
    "attention/flash_causal_lse",
    "attention/flash_forward",
    "conv/conv2d_implicit_gemm",
    "language/item_for_length",
    "layout/transpose_tiles",
    "losses/cross_entropy_liger",
    "matmul/tutorial_autotuned",
    "norms/instance_norm_welford",
    "positions/rope_interleaved",
    "quantise/fp8_blockwise",
    "reductions/argmax_argmin",
    "scans/linear_recurrence",
    "sorting/sort_rows",
    "training/adam_in_place",
}
"""One pair of most subjects."""
LONG = (pytest.mark.long, pytest.mark.timeout(1800))


def test_the_corpus_has_many_pairs() -> None:
    assert len(PAIRS) >= 100
    assert {pair.name for pair in PAIRS} >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param({pair.name for pair in PAIRS} - QUICK, marks=LONG)],
    ids=["quick", "others"],
)
def test_the_judge_takes_every_honest_candidate(names: set[str]) -> None:
    pairs = [pair for pair in PAIRS if pair.name in names]
    with forge.judges(device="cpu", workers=1) as pool:
        verdicts = pool.judge_many([(pair.problem, pair.candidate) for pair in pairs])
        found = zip(pairs, verdicts, strict=True)
        missed = {pair.name: one.detail for pair, one in found if not one.correct}
    assert missed == {}
