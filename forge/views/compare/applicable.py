"""Keys of an experiment that have an effect in a run, so that a comparison lists no others.

The resolved experiment has every key with its default, those of tables that the run does not use
included. Pure; a key without a rule always applies.
"""

# pyright: strict
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Settings = Mapping[str, Any]
"""Flat experiment: `rollout.group_size` to its value; `stages` is `eval → sft → grpo`."""


def _has_stage(kind: str) -> Callable[[Settings], bool]:
    return lambda settings: kind in str(settings.get("stages", "")).split(" → ")


def _is(key: str, value: Any) -> Callable[[Settings], bool]:
    return lambda settings: settings.get(key) == value


def _serves_itself(settings: Settings) -> bool:
    return not settings.get("serve.url")


def _judges_itself(settings: Settings) -> bool:
    return not settings.get("judge.url")


def _has_pairs(settings: Settings) -> bool:
    """True if the rows of [data] are used: for SFT, or for the tokenizer of a tiny model."""
    return _has_stage("sft")(settings) or _is("model.init", "tiny")(settings)


def _is_generated(settings: Settings) -> bool:
    """True if a source of problems is generated; several sources have keys with numbers."""
    sources = [value for key, value in settings.items() if key.endswith(".source")]
    return "generated" in [value for value in sources if isinstance(value, str)]


_OF_GRPO = (
    "group_size", "groups_per_step", "gamma", "credit", "scale", "max_staleness", "sampler",
    "replay", "groups_in_flight", "in_flight", "max_replacements", "train_truncated",
)  # fmt: skip
_OF_ENGINE = (
    "engine", "replicas", "threads", "slots", "memory_share", "tensor_parallel", "eager", "sleep",
    "precision",
)  # fmt: skip

RULES: dict[str, Callable[[Settings], bool]] = {
    "model.tiny.": _is("model.init", "tiny"),
    "data.": _has_pairs,
    "reward.": _has_stage("grpo"),
    **{f"rollout.{name}": _has_stage("grpo") for name in _OF_GRPO},
    **{f"eval.{name}": _has_stage("grpo") for name in ("every", "num_problems")},
    **{f"serve.{name}": _serves_itself for name in _OF_ENGINE},
    **{f"judge.{name}": _judges_itself for name in ("workers", "isolation")},
    **{
        f"problems.{name}": _is_generated
        for name in ("num_problems", "sizes", "families", "dtypes", "sft_by_level")
    },
}
"""Key, or the beginning of keys up to a dot, to the condition under which it has an effect."""


def applies(key: str, settings: Settings) -> bool:
    """True if the key has an effect in a run with these settings."""
    for name, condition in RULES.items():
        if key == name or (name.endswith(".") and key.startswith(name)):
            return condition(settings)
    return True
