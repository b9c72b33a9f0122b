"""`forge.reward`: the same terms as a run's, also for a verdict that came over HTTP."""

from dataclasses import replace

import pytest

import forge
from forge.adapters.answering import publish
from forge.config.schema import JudgeTable, RewardTable
from forge.errors import ConfigError
from forge.records import Status, Timing, Verdict
from forge.records.problem import ReferenceModule
from forge.rollout.rewards import reward_terms

TIMING = Timing(
    speedup=3.0, speedup_low=2.5, candidate_us=10.0, baseline_us=30.0, candidate_spread_us=0.5,
    baseline_spread_us=0.7, achieved_gbps=900.0,
)  # fmt: skip
CORRECT = Verdict(status=Status.CORRECT, reason="ok", detail="", is_compiled=True, timing=TIMING)
VERDICTS = [
    CORRECT,
    replace(CORRECT, timing=None),
    replace(CORRECT, status=Status.WRONG, timing=None),
    replace(CORRECT, status=Status.REJECTED, timing=None, is_compiled=False),
    replace(CORRECT, status=Status.COMPILE_ERROR, timing=None, is_compiled=False),
]
WEIGHTS = {"speedup": 0.5, "rejected": -0.25, "compile_error": -0.125}


def published(verdict: Verdict) -> forge.Verdict:
    problem = ReferenceModule(problem_id="p", source="s")
    found = publish(verdict, problem=problem, code="c", feedback="f", table=JudgeTable())
    return forge.Verdict.from_json(found.to_json())


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("weights", [{}, WEIGHTS])
def test_a_reward_equals_that_of_a_run(verdict, weights):
    reward = forge.reward(published(verdict), weights)
    terms = reward_terms(verdict, RewardTable(**weights))
    assert reward.terms == terms
    assert reward.value == sum(terms.values())
    assert forge.Reward.from_json(reward.to_json()) == reward


@pytest.mark.parametrize("status", [Status.INFRA_ERROR, Status.UNJUDGEABLE])
def test_a_verdict_that_says_nothing_about_the_answer_has_no_reward(status):
    verdict = published(Verdict(status=status, reason="no_judge", detail=""))
    assert not verdict.scored
    assert verdict.infra == (status is Status.INFRA_ERROR)
    reward = forge.reward(verdict)
    assert reward.value is None
    assert reward.terms == {}


def test_a_weight_that_does_not_exist_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"weights\.corect: unknown key; did you mean correct\?"):
        forge.reward(published(CORRECT), {"corect": 1.0})
