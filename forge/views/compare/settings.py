"""Settings, code, versions and machine of two runs, key by key; a key without an effect in either
run is left out.

The resolved experiment has every key with its default, those of tables that the run does not use
included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tomli

from forge.views.compare.comparison import Change
from forge.views.text.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from forge.store.reader import RunReader

ABSENT = object()

_MADE_WITH = """
SELECT code_commit, code_diff <> '' AS has_diff, seed, versions, machine FROM attempts
ORDER BY attempt DESC LIMIT 1
"""


def find_changes(a: RunReader, b: RunReader) -> tuple[Change, ...]:
    """Keys of the experiment, then of the last attempt's code and machine, where they differ. A
    stage that only one run has appears in `stages`, without its keys; a key without effect in both
    runs is left out.
    """
    found_a, found_b = _settings(a), _settings(b)
    both = _stages(found_a) & _stages(found_b)
    return tuple(
        Change(key=key, a=_shown(key, found_a), b=_shown(key, found_b))
        for key in {**found_a, **found_b}
        if found_a.get(key, ABSENT) != found_b.get(key, ABSENT)
        and (not key.startswith("stage.") or _stage_of(key) in both)
        and (applies(key, found_a) or applies(key, found_b))
    )


def _shown(key: str, settings: Mapping[str, Any]) -> Any:
    return HIDDEN if key in settings and is_secret(key) else settings.get(key)


def _experiment(tables: dict[str, Any]) -> dict[str, Any]:
    """A flat experiment, with stages named by kind: stages of one kind are compared with each
    other.
    """
    stages = tables.pop("stage", [])
    out = dict(_flat(tables))
    kinds = [str(stage.get("kind")) for stage in stages]
    out["stages"] = " → ".join(kinds)
    for index, (kind, stage) in enumerate(zip(kinds, stages, strict=True)):
        before = kinds[:index].count(kind)
        name = f"stage.{kind}[{before}]." if before else f"stage.{kind}."
        out |= dict(_flat(stage, place=name))
    return out


def _stages(settings: Mapping[str, Any]) -> set[str]:
    return {_stage_of(key) for key in settings if key.startswith("stage.")}


def _stage_of(key: str) -> str:
    """`stage.grpo[1]` of `stage.grpo[1].steps`."""
    return ".".join(key.split(".")[:2])


def _settings(reader: RunReader) -> dict[str, Any]:
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        settings = _experiment(tomli.loads(text))
    except tomli.TOMLDecodeError:  # a run made by hand
        settings = {}
    made = reader.one(_MADE_WITH)
    if made is None:
        return settings
    settings |= {"code.commit": made["code_commit"], "code.is_changed": bool(made["has_diff"])}
    settings |= dict(_flat(json.loads(made["versions"]), place="versions."))
    return settings | dict(_flat(json.loads(made["machine"]), place="machine."))


def _flat(table: Mapping[str, Any], *, place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, place=f"{place}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, one in enumerate(value):
                yield from _flat(one, place=f"{place}{key}[{index}].")
        else:
            yield f"{place}{key}", value


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
