# pyright: strict
"""Tolerances, and protocols: other projects' rules for a correct answer, for comparable numbers.

A protocol decides which inputs a candidate must answer, how close, what torch may do beside its
kernels (the policy: `hybrid` under both), and what its source may not contain. Sandbox, capture and
memory checks are the judge's own; what games a check passes nowhere (docs/how-to/evaluate.md).

`kernelbench`: ScalingIntelligence/KernelBench at 423217d (2026-03-05), src/kernelbench/eval.py and
scripts/eval_from_generations.py: 5 trials on `get_inputs()`, parameters as they initialise, TF32 by
torch's defaults (convolutions, not products); `torch.allclose` with atol = rtol = 1e-4 in fp32,
1e-2 in fp16 and bf16. `STATIC_CHECKS` are those that its kernel_static_checker.py makes by default.

`drkernel`: hkust-nlp/KernelGYM at 3a84417 (2026-02-07), toolkit/kernelbench/correctness.py and
config/settings.py ("standard") of kernelgym: the same 5 trials with atol = rtol = 1e-2. Its only
rules about the source are syntax and the entry point.

Neither calls `load_reference`. Differences that remain here: seeds are fresh instead of derived
from 42; constants in place of Model's, and draws on the card in place of the host's, are loaded by
name; each trial begins with Model's state as constructed; a tensor that a constructor leaves on the
host is on the card; indices and masks keep their dtypes. Their timing is not reproduced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FORGE = "forge"
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2, "e4m3": 0.125, "e5m2": 0.25}
"""Our own, by precision; of fp8 a step of the type."""
PRECISION = {"float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""By the type of an output. Any other says nothing."""
NUM_TRIALS = 5
"""Input sets of the other protocols, as the problem gives them."""
ONE_TENSOR = "Model returns several tensors, and this protocol compares one: nothing passes"

COMMENTS = re.compile(r"(#|//).*")
"""What KernelBench takes for comments, divisions with their rest of the line among them."""
STATIC_CHECKS: Mapping[str, re.Pattern[str]] = {
    "try or except": re.compile(r"\btry\s*:|\bexcept\s*:|\bexcept\s+\w"),
    "the word pass": re.compile(r"\bpass\b"),
    "threads or processes": re.compile(
        r"\bthreading\.Thread\s*\(|(import|from)\s+threading|import\s+multiprocessing|"
        r"multiprocessing\.(Process|Pool|Manager|Queue|Pipe)|concurrent\.futures|"
        r"(Thread|Process)PoolExecutor"
    ),
    "a subclass of Tensor": re.compile(
        r"_make_subclass|class\s+\w+.*\((torch\.)?Tensor\)|torch\.Tensor\.__new__"
    ),
    "an assignment to a clock": re.compile(
        r"torch\.cuda\.(Event(\.record|\.elapsed_time)?|synchronize)\s*=|"
        r"time\.(perf_counter|time)\s*="
    ),
}
"""Text that KernelBench allows nowhere in a source, strings included."""
NEEDED: Mapping[str, re.Pattern[str]] = {
    "@triton.jit or @triton.autotune": re.compile(r"@triton\.(jit|autotune)"),
    "an operation of tl": re.compile(r"\btl\.\w"),
}
"""Text that it asks for where an answer is to be Triton."""
OWN_HOOK = re.compile(r"\bdef\s+load_reference\b")
"""A method that only this judge calls: elsewhere an answer lacks the values derived there."""


class StaticFault(NamedTuple):
    """A place in a source that a static check refuses, or what it misses there."""

    line: int | None
    """None for what is missing."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProtocol:
    """Another project's check of correctness."""

    name: str
    tolerances: Mapping[str, float]
    """atol and rtol of `torch.allclose`, by precision."""
    forbidden: Mapping[str, re.Pattern[str]] = field(default_factory=dict[str, "re.Pattern[str]"])
    needed: Mapping[str, re.Pattern[str]] = field(default_factory=dict[str, "re.Pattern[str]"])

    def source_fault(self, code: str) -> StaticFault | None:
        bare = COMMENTS.sub("", code)
        for name, pattern in self.forbidden.items():
            if found := pattern.search(bare):
                line = bare.count("\n", 0, found.start()) + 1
                shown = found[0].strip()
                return StaticFault(line, f"{self.name}'s static check refuses {name}: {shown}")
        if found := OWN_HOOK.search(bare):
            line = bare.count("\n", 0, found.start()) + 1
            message = "calls no load_reference: derive from parameters in forward"
            return StaticFault(line, f"{self.name} {message}")
        for name, pattern in self.needed.items():
            if not pattern.search(bare):
                return StaticFault(None, f"{self.name}'s static check needs {name}")
        return None


PROTOCOLS: Mapping[str, OtherProtocol] = {
    one.name: one
    for one in (
        OtherProtocol(
            name="kernelbench",
            tolerances={"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2},
            forbidden=STATIC_CHECKS,
            needed=NEEDED,
        ),
        OtherProtocol(name="drkernel", tolerances={"fp32": 1e-2, "fp16": 1e-2, "bf16": 1e-2}),
    )
}


class Tf32(NamedTuple):
    """Operations of torch in fp32 that may use TF32 on a card."""

    products: bool
    convolutions: bool

    @classmethod
    def of(cls, allowed: bool, *, is_other: bool) -> Tf32:
        """For reference, candidate and baseline alike: `judge.tf32` under our protocol, torch's
        defaults under another, which sets none."""
        return cls(False, True) if is_other else cls(allowed, allowed)

    @property
    def request(self) -> dict[str, bool]:
        return {"tf32": self.convolutions, "tf32_products": self.products}
