"""verl: a custom reward function.

    reward.custom_reward_function.path=pkg://forge.adapters.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.url=http://127.0.0.1:8200

`reward_model.ground_truth` of a row is the problem: its source, or its name on the server. verl has
no place for an answer without a verdict, so that is NoScore, which ends the step. The manager
`rate_limited` must not be used: it turns every exception into a reward of 0.

Turns: verl decodes the whole response of an agent loop, and the last code block in it is judged.
Its score is placed at the last token. Lost: rewards and returns of single turns; `turn_scores` of
its agent loops are logged and do not train.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from forge.adapters.scoring import NoScore, Scorer


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    url: str | None = None,
    weights: dict[str, Any] | None = None,
    **_unused: Any,
) -> dict[str, float]:
    """The reward of a response as `score`, and facts that verl logs.

    Raises:
        NoScore: no verdict on the response.
        ConfigError: no URL, or a problem that the server refuses.
    """
    scorer = _scorer(url, tuple(sorted((weights or {}).items())))
    outcome = await asyncio.to_thread(scorer.score, ground_truth, solution_str)
    if outcome.reward is None:
        raise NoScore(outcome.feedback)
    return {"score": outcome.reward, **outcome.facts()}


@cache
def _scorer(url: str | None, weights: tuple[tuple[str, Any], ...]) -> Scorer:
    return Scorer(url, weights=dict(weights) or None)
