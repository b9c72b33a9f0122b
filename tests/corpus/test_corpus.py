"""Honest candidates are captured, not refused, and compute what their problem does."""

from pathlib import Path

import pytest

import forge
from tests.corpus.corpus import Pair, load
from tests.corpus.running import run

PAIRS = load()
QUICK = {
    "activations/swiglu",
    "attention/flash_causal_lse",
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
"""One pair of most subjects, captured and evaluated in this process."""


def test_the_corpus_has_many_pairs() -> None:
    assert len(PAIRS) >= 100
    assert {pair.name for pair in PAIRS} >= QUICK
    assert all(pair.subject for pair in PAIRS)


@pytest.mark.parametrize(
    "pair", [one for one in PAIRS if one.name in QUICK], ids=lambda one: one.name
)
def test_an_honest_candidate_is_right(pair: Pair, tmp_path: Path) -> None:
    found = run(pair, tmp_path)
    assert found.refusals == []
    assert found.errors == []
    assert found.faults == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_judge_takes_every_honest_candidate() -> None:
    with forge.judges(device="cpu") as pool:
        verdicts = pool.judge_many([(pair.problem, pair.candidate) for pair in PAIRS])
        found = zip(PAIRS, verdicts, strict=True)
        missed = {pair.name: one.detail for pair, one in found if not one.correct}
    assert missed == {}
