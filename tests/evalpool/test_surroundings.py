"""Host code that asks for more than its arguments is refused, or judged in both modes."""

from typing import Any

import pytest

from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, RELU

TRAINED = RELU.replace("def forward(self, x):\n", "def forward(self, x):\n        self.training\n")
CODE = (
    HEAD
    + """
@triton.jit
def kernel(x, y, n, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.minimum(tl.maximum(v * 2, 0.0), HIGH), mask=i < n)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Identity()
        self.count = torch.zeros((), device="cpu")

    def forward(self, x):
        y, block, high = torch.empty_like(x), 256, 1e38
        LOOK
        kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), HIGH=high, BLOCK=block)
        return y
"""
)


@pytest.mark.parametrize(
    ("look", "problem", "reason", "words"),
    [
        ("if x.requires_grad: block = 512", RELU, "ok", ""),
        ("if x.requires_grad: raise ValueError('no gradient')", RELU, "ok", ""),
        ("if x.requires_grad: high = 3.0", RELU, "mismatch", "that require gradients forward"),
        ("if not self.training: high = 3.0", RELU, "mismatch", "after eval() forward"),
        ("if not self.training: block = 512", RELU, "ok", ""),
        ("if not self.training: high = 3.0", TRAINED, "ok", ""),
        ("if not self.part.training: high = 3.0", RELU, "unsupported", "names training of a part"),
        ("if 'grad' in f'{x}': high = 3.0", RELU, "unsupported", "a text that is made"),
        ("if x.device.index: return x", RELU, "unsupported", "decides by x.device"),
        ("if x._base is None: high = 3.0", RELU, "unsupported", "names x._base"),
        ("self.count += 1; high = 3.0 if self.count > 9 else high", RELU, "unsupported", ""),
        ("self.count.add_(1); high = 3.0 if self.count > 9 else high", RELU, "unsupported", "host"),
    ],
)
def test_what_forward_asks_for_is_judged_or_refused(
    bench: Any, look: str, problem: str, reason: str, words: str
) -> None:
    verdict = bench.judge(CODE.replace("LOOK", look), problem=problem)
    assert verdict.reason == reason, verdict.detail
    assert (verdict.status is Status.CORRECT) == (reason == "ok")
    assert words in verdict.detail
