"""Settings, code, versions and machine of two runs, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
    stage that only one run has appears in `stages`, without its keys.
    """
    found_a, found_b = _settings(a), _settings(b)
    both = _stages(found_a) & _stages(found_b)
    return tuple(
        Change(key=key, a=_shown(key, found_a), b=_shown(key, found_b))
        for key in {**found_a, **found_b}
        if found_a.get(key, ABSENT) != found_b.get(key, ABSENT)
        and (not key.startswith("stage.") or _stage_of(key) in both)
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
