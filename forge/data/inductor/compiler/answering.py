"""Answers a problem by the compiler, in a child process that imported this file before its fork.

    text ─trace─▶ Inductor's code ─rewrite─▶ plain Triton

Sizes are symbols, and so are numbers that modules keep, where the model bears that.
"""

from __future__ import annotations

import torch
import torch.hub

from forge.data.harvest.records import Answered, AnswerTask, Unanswered
from forge.data.inductor.compiler.graph import Untraceable, trace
from forge.data.inductor.literals import size_literals
from forge.data.inductor.rewrite import rewrite
from forge.data.inductor.source import NotRewritten, RewriteReason

FINAL = (RewriteReason.RANDOM, RewriteReason.NO_KERNEL)
"""Reasons that another trace does not change."""
ATTEMPTS = ({}, {"with_attributes": False})
"""Options of traces, tried in turn."""


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
        assert isinstance(answer(AnswerTask(text=WARMING)), Answered)


def answer(task: AnswerTask) -> Answered | Unanswered:
    """The answer of a problem, or why there is none."""
    first: Unanswered | None = None
    for options in ATTEMPTS:
        try:
            return _answer(task, **options)
        except Untraceable as err:
            found = Unanswered(reason=err.reason, detail=err.detail)
        except NotRewritten as err:
            found = Unanswered(reason=str(err.reason).replace("_", " "), detail=err.detail)
            if err.reason in FINAL:
                return found
        except Exception as err:  # of a form of code that no one has seen: the next problem goes on
            found = Unanswered(reason="not rewritten", detail=f"{type(err).__name__}: {err}"[:300])
        first = first or found
    assert first is not None
    return first


def _answer(task: AnswerTask, **options: bool) -> Answered:
    traced = trace(task.text, **options)
    made = rewrite(traced.code, traced.entry, traced.names)
    return Answered(
        code=made.code,
        policy=made.policy,
        kernels=made.kernels,
        products=made.products,
        literals=tuple(size_literals(made.code, traced.sizes)),
    )
