"""Answers a problem by the compiler, in a child process that imported this file before its fork.

    text ─trace─▶ Inductor's code ─rewrite─▶ plain Triton

Sizes are symbols, and so are numbers that modules keep, where the model bears that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.compiler.graph import Untraceable, trace
from forge.data.inductor.literals import size_literals
from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.rewrite import rewrite

if TYPE_CHECKING:
    from forge.data.harvest.records import AnswerTask

FINAL = (RewriteReason.RANDOM, RewriteReason.NO_KERNEL)
"""Reasons that another trace does not change."""
ATTEMPTS = ({}, {"with_attributes": False})
"""Options of traces, tried in turn."""


def preload() -> None:
    """Prepares torch for a fork for each problem: what answers need is imported with this file."""
    torch.set_num_threads(1)


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
    traced = trace(task.text, large=task.large, **options)
    made = rewrite(traced.code, traced.entry, traced.names)
    return Answered(
        code=made.code,
        policy=made.policy,
        kernels=made.kernels,
        products=made.products,
        literals=tuple(size_literals(made.code, traced.sizes)),
    )
