"""The reward of a published verdict, term by term, as a run computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from forge.api.published import for_reward
from forge.api.verdict import Reward, Verdict
from forge.config.mistakes import found_mistakes
from forge.config.schema import RewardTable, dotted
from forge.errors import ConfigError
from forge.rewards import reward_terms

if TYPE_CHECKING:
    from collections.abc import Mapping


def reward_of(verdict: Verdict, table: RewardTable) -> Reward:
    """The reward with checked weights."""
    terms = reward_terms(for_reward(verdict), table)
    if terms is None:
        return Reward(value=None)
    return Reward(value=float(sum(terms.values())), terms=terms)


def read_weights(weights: Mapping[str, Any] | None) -> RewardTable:
    """The `[reward]` table with these keys. Raises ConfigError."""
    values = dict(weights or {})
    try:
        return RewardTable.model_validate(values)
    except ValidationError as error:
        found = found_mistakes(error, values, root=RewardTable)
        lines = [f"weights.{dotted(mistake.path)}: {mistake.text}" for mistake in found]
        raise ConfigError("\n".join(lines)) from error
