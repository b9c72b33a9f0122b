# pyright: strict
"""Protocols of correctness: other projects' input sets and tolerances, for comparable numbers.

A protocol decides which inputs a candidate must answer and how close. Sandbox, capture, policy and
memory checks are the judge's own under each.

`kernelbench`: ScalingIntelligence/KernelBench at 423217d (2026-03-05), src/kernelbench/eval.py and
scripts/eval_from_generations.py: 5 trials on `get_inputs()` as the problem gives it, parameters as
they initialise, TF32 by torch's defaults (convolutions, not products); `torch.allclose` with atol =
rtol = 1e-4 in fp32, 1e-2 in fp16 and bf16.

`drkernel`: hkust-nlp/KernelGYM (Dr.Kernel) at 3a84417 (2026-02-07),
kernelgym/toolkit/kernelbench/correctness.py and kernelgym/config/settings.py ("standard"): the same
5 trials with atol = rtol = 1e-2 at every precision.

Both compare one tensor, so nothing passes where Model returns several. Differences that remain
here: seeds are fresh instead of derived from 42; a candidate's parameters are loaded by name
instead of drawn in the same order; indices and masks keep their dtypes, which KernelBench casts to
the precision, so that its own reference fails; and what the policy refuses (torch's work, a decoy,
an input that is changed) passes nowhere. Their timing (KernelBench: mean of 100 calls by
CUDA events behind a flush of 256 MB; Dr.Kernel: without a flush) is not reproduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from forge.evalpool.judge.channel.shm import decode
from forge.evalpool.judge.numbers.compare import Expected, mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.evalpool.judge.channel.shm import Data

FORGE = "forge"
NUM_TRIALS = 5
"""Input sets of the other protocols, as the problem gives them."""
ONE_TENSOR = "Model returns several tensors, and this protocol compares one: nothing passes"


class Comparison(Protocol):
    """Compares an output's bytes with the expected values; None if they agree."""

    def __call__(self, expected: Expected, data: Data, *, name: str) -> str | None:
        """The first mismatch in one line; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProtocol:
    """Another project's check of correctness."""

    name: str
    tolerances: Mapping[str, float]
    """atol and rtol of `torch.allclose`, by precision."""

    def comparison(self, precision: str) -> Comparison:
        """The comparison of outputs at a problem's precision."""
        allowed = self.tolerances[precision]

        def compare(expected: Expected, data: Data, *, name: str) -> str | None:
            return allclose_mismatch(expected, data, tolerance=allowed, name=name)

        return compare


PROTOCOLS: Mapping[str, OtherProtocol] = {
    one.name: one
    for one in (
        OtherProtocol(name="kernelbench", tolerances={"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}),
        OtherProtocol(name="drkernel", tolerances={"fp32": 1e-2, "fp16": 1e-2, "bf16": 1e-2}),
    )
}
"""Protocols beside `forge`, by name."""


def allclose_mismatch(expected: Expected, data: Data, *, tolerance: float, name: str) -> str | None:
    """The first mismatch in the sense of `torch.allclose(reference, candidate)`: NaN differs from
    everything, and the relative tolerance is of the candidate's value. Booleans must be equal."""
    if expected.spec.dtype == "bool":
        return mismatch(expected, data, name=name)
    got = decode(expected.spec, data)
    with np.errstate(invalid="ignore"):
        allowed = np.where(np.isfinite(got), tolerance + tolerance * np.abs(got), 0.0)
    both_nan = np.isnan(got) & np.isnan(expected.values)
    if both_nan.any():
        return f"{name} has NaN where Model has NaN: torch.allclose refuses both"
    return mismatch(expected, data, name=name, allowed=allowed)
