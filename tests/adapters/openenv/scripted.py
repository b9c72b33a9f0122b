"""An environment with a scripted judge, for tests."""

from typing import Any, cast

import anyio

from forge.adapters.answering import Answering
from forge.adapters.openenv.server import Environment, EpisodeRules, ServedProblems, Sessions
from forge.config.schema import JudgeTable, PromptTable, RewardTable
from forge.data.prompts.prompt_set import make_prompts
from forge.records import Status, Timing, Verdict
from forge.records.problem import ReferenceModule
from tests.evalpool.judged import CODE, PROBLEM

RIGHT = Verdict(status=Status.CORRECT, reason="ok", detail="", is_compiled=True)
WRONG = Verdict(
    status=Status.WRONG, reason="mismatch", detail="output[0]: expected 1", is_compiled=True
)
FAULT = Verdict(status=Status.INFRA_ERROR, reason="zygote_gone", detail="it died")
HOPELESS = Verdict(status=Status.UNJUDGEABLE, reason="reference_error", detail="it raises")
SLOW = Timing(
    speedup=1.5, speedup_low=1.4, candidate_us=2.0, baseline_us=3.0, candidate_spread_us=0.1,
    baseline_spread_us=0.1,
)  # fmt: skip
PROBLEMS = {"L1_1_Add": PROBLEM, "L1_12_Mul": PROBLEM, "L2_1_Chain": PROBLEM}


class ScriptedJudge:
    """Gives these verdicts in order, then RIGHT for the kernel of `judged.py`, WRONG for others."""

    def __init__(self, *verdicts: Verdict, pause_s: float = 0.0) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[str] = []
        self._pause_s = pause_s

    async def judge(self, problem: ReferenceModule, code: str, *, timing: bool) -> Verdict:
        self.asked.append(code)
        await anyio.sleep(self._pause_s)
        if self.verdicts:
            return self.verdicts.pop(0)
        return RIGHT if code.strip() == CODE.strip() else WRONG


def scripted_rules(*verdicts: Verdict, pause_s: float = 0.0) -> EpisodeRules:
    """EpisodeRules of episodes with a scripted judge."""
    return rules_of(ScriptedJudge(*verdicts, pause_s=pause_s))


def rules_of(judge: ScriptedJudge, *, max_turns: int = 3) -> EpisodeRules:
    """EpisodeRules of episodes with this judge as the pool."""
    prompts = make_prompts(PromptTable(preset="standard"))
    return EpisodeRules(
        judge=Answering(cast("Any", judge), JudgeTable(), prompts).judge,
        reward=RewardTable(),
        prompts=prompts,
        max_turns=max_turns,
        device="cpu",
    )


def scripted_environment(
    *verdicts: Verdict, pause_s: float = 0.0, limit: int = 8, idle_s: float = 60.0
) -> Environment:
    """An environment with three problems and a scripted judge."""
    return Environment(
        rules=scripted_rules(*verdicts, pause_s=pause_s),
        problems=ServedProblems(by_name=PROBLEMS),
        sessions=Sessions(limit=limit, idle_s=idle_s),
        now=lambda: 0.0,
    )
