"""Rewards of verdicts, discounted returns of turns, advantages in a group. Pure Python.

Called by the rollout loop: terms.py per turn, returns.py per rollout, advantages.py per group.
"""

from forge.rewards.advantages import group_advantages, is_flat
from forge.rewards.returns import turn_returns
from forge.rewards.terms import is_good_enough, reward_terms

__all__ = ["group_advantages", "is_flat", "is_good_enough", "reward_terms", "turn_returns"]
