"""Answers a problem by the compiler, in a child process that imported this file before its fork.

    text ─trace─▶ Inductor's code ─rewrite─▶ plain Triton

Sizes are symbols, and so are numbers that modules keep, where the model bears that.
"""

from __future__ import annotations

import torch
import torch.hub

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.compiler.graph import trace
from forge.data.inductor.rewrite import rewrite

FINAL = ("random", "no kernel")
"""Reasons that another trace does not change."""
WARMING = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20)
        self.linear = nn.Linear(20, 24)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean(dim=(2, 3))
        x = nn.functional.gelu(self.linear(x))
        return x.softmax(-1) * x.sigmoid()


def get_inputs():
    return [torch.randn(6, 3, 18, 22)]


def get_init_inputs():
    return []
"""


def preload() -> None:
    """Prepares torch for a fork for each problem, by an answer: what it loads and remembers on the
    way, a tenth of an answer's time, no child does again."""
    torch.set_num_threads(1)
    vars(torch.hub)["tqdm"].monitor_interval = 0  # its thread would stop the forks
    with torch.no_grad():
        answer(WARMING)


def answer(text: str) -> Answered:
    """The answer of a problem, at the sizes of its text. Raises Unanswered."""
    first: Unanswered | None = None
    for with_attributes in (True, False):
        try:
            return rewrite(trace(text, with_attributes=with_attributes))
        except Unanswered as error:
            if error.reason in FINAL:
                raise
            first = first or error
        except Exception as error:  # of a form of code that no one has seen
            said = f"{type(error).__name__}: {error}"[:300]
            first = first or Unanswered("not rewritten", said)
    assert first is not None
    raise first
