# pyright: standard
"""slime: a custom reward function, and rewards that are centred within the problem's group.

    --custom-rm-path forge.adapters.slime.compute_score --rm-url http://127.0.0.1:8200
    --custom-reward-post-process-path forge.adapters.slime.group_rewards

`label` of a sample is the problem: its source, or its name on the server. Without a verdict the
sample is removed from the loss and from its group's mean by `group_rewards`; without that function
in the command, NoScore ends the rollout, since slime would score the sample.

Turns: a function of `--custom-generate-function-path` may return a sample for each turn, with the
same `group_index` and `rollout_id`, and set `reward` to its return (`Attempts.returns`). Then
nothing is lost: `group_rewards` centres all turns of the group, as forge does, where slime itself
would take the whole batch for one group. Other samples of several turns are judged by their last
code block, and have one reward.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import cache
from statistics import fmean, pstdev
from typing import Any

from forge.adapters.scoring import NoScore, ServedScorer

POST_PROCESS = "forge.adapters.slime.group_rewards"
EPSILON = 1e-6


async def compute_score(args: Any, sample: Any, **_unused: Any) -> Any:
    """The reward of a sample, or of each of a list, which slime passes for a batch and with
    `--group-rm`. Raises NoScore, ConfigError."""
    samples = sample if isinstance(sample, list) else [sample]
    problems, answers = [one.label for one in samples], [one.response for one in samples]
    scorer = _scorer(getattr(args, "rm_url", None))
    scored = await asyncio.to_thread(scorer.score_all, problems, answers)
    for one, each in zip(samples, scored, strict=True):
        if each.reward is None:
            if getattr(args, "custom_reward_post_process_path", None) != POST_PROCESS:
                raise NoScore(each.feedback)
            one.remove_sample = True
    rewards = [each.reward or 0.0 for each in scored]
    return rewards if isinstance(sample, list) else rewards[0]


def group_rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards less the mean of their group, over its deviation if slime is to
    normalise it. Removed samples have 0 and count in no mean."""
    flat = [one for each in samples for one in (each if isinstance(each, list) else [each])]
    raw = [float(one.get_reward_value(args)) for one in flat]
    groups: defaultdict[Any, list[float]] = defaultdict(list)
    for one, value in zip(flat, raw, strict=True):
        if not one.remove_sample:
            groups[one.group_index].append(value)
    centred: list[float] = []
    for one, value in zip(flat, raw, strict=True):
        values = groups[one.group_index]
        scale = pstdev(values) + EPSILON if values and args.grpo_std_normalization else 1.0
        centred.append(0.0 if one.remove_sample else (value - fmean(values)) / scale)
    return raw, centred


@cache
def _scorer(url: str | None) -> ServedScorer:
    return ServedScorer(url)
