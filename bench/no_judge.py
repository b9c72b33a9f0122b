"""`forge run` without judges, for `bench/step.py --no-judge`: random weights write no kernels, so
a step at a model's size has nothing to judge. Measures generation, training and publishing only.

    python bench/no_judge.py run X.toml

forge's own command line in this interpreter, with two names of `forge.runner` replaced: the
pool, by one that has no judge and answers at once with a made-up reward (`made_up_reward`, 0 or 1);
and the prompter, by one that takes every answer whole. Loop, engines, trainer, publishing and store
are the real ones, in children that see none of this. The file X.toml comes from
`step_shape.without_judge`: it names a pool that is not there, so that plain forge refuses it.

A bench alone: nothing under `forge/` imports this, and what such a run "learns" means nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trainers_workload import made_up_reward

from forge import cli
from forge.evalpool.pool import GPU_CAPACITY, Pool
from forge.evalpool.seating import Seat, Seating
from forge.records import Problem, Reason, Status, Verdict
from forge.rollout.prompter import TemplatePrompter
from forge.runner import prepare_run, work

if TYPE_CHECKING:
    from forge.config.schema import JudgeTable
    from forge.records.problem import ReferenceModule

EARNS, EARNS_NOT = "[made-up reward: 1]", "[made-up reward: 0]"
"""Prefix of prompt and completion texts: the reward depends on token ids, which a judge does not
see.
"""


class WholeAnswers(TemplatePrompter):
    """Accepts every answer as code, marked with its made-up reward."""

    def decode(self, token_ids: Sequence[int]) -> str:
        mark = EARNS if made_up_reward(token_ids) else EARNS_NOT
        return f"{mark} {super().decode(token_ids)}"

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        return completion_text, Reason.OK


class NoJudges(Pool):
    """A pool without judges."""

    async def judge(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        timing: bool = True,
        profile: bool = False,
        program: bool = False,
        outputs: bool = False,
    ) -> Verdict:
        """Answers at once; the status is never correct, so that no pass rate is claimed."""
        return Verdict(
            status=Status.WRONG,
            reason="made_up",
            detail="nothing was judged",
            is_compiled=code.startswith(EARNS),
        )


@asynccontextmanager
async def open_no_judges(table: JudgeTable, **kwargs: Any) -> AsyncIterator[NoJudges]:
    """Replaces `open_pool`; starts no process."""
    yield NoJudges(table, Seating([Seat("no-judge", capacity=GPU_CAPACITY)]))


def main() -> None:
    work.open_pool = open_no_judges
    prepare_run.TemplatePrompter = WholeAnswers
    cli.main()


if __name__ == "__main__":
    main()
