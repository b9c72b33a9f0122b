"""Keys that experiments had once. An experiment that is to run is refused with what to use instead;
the recorded experiment of a run stays readable, without them.

Called by `load.py` and `mistakes.py`. A key that leaves the schema gets a line here.
"""

# pyright: strict

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from forge.config.schema import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge.config.schema import KeyPath, TomlTable
    from forge.config.sources import Sources

logger = logging.getLogger(__name__)

RECORDING = "experiment.toml"
"""Name of the recorded experiment in the folder of a run."""
_BESIDE = ("identity.json", "run.db", "STATUS.json")
"""Files of which a folder of a run has at least one, also one whose store is archived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedKey:
    """A key that the schema has no longer."""

    path: str
    """Table and key; `stage.*.x` is a key of any stage."""
    date: str
    """Day of the removal; commit."""
    instead: str
    """Advice in one clause: the key or table to use."""


REMOVED = (
    RemovedKey(
        path="problems.sft_share", date="2026-11-20, ae2d1c52",
        instead="problems.sft_by_level has the numbers of problems that SFT sees",
    ),
    RemovedKey(
        path="data.fused_share", date="2026-11-21, 7a0427f3",
        instead="data.static_share is the share of answers with sizes as numbers",
    ),
    RemovedKey(
        path="data.two_turn_share", date="2026-11-21, 0d8451f7",
        instead="data.repair_share is the share of rows with broken answers",
    ),
    RemovedKey(
        path="stage.*.trainer", date="2026-11-21, 6eaf28cc",
        instead="there is one trainer; share_prefixes forwards shared prefixes once",
    ),
    RemovedKey(
        path="judge.torch_share", date="2026-11-23, ec619bf5",
        instead='judge.policy = "own" or "hybrid" says what torch may do',
    ),
    RemovedKey(
        path="judge.allow_ops", date="2026-11-23, ec619bf5",
        instead='judge.policy = "own" or "hybrid" says what torch may do',
    ),
)  # fmt: skip


def find_removed(path: KeyPath) -> RemovedKey | None:
    """The entry of a key that was removed; None for any other."""
    name = ".".join("*" if isinstance(part, int) else part for part in path)
    return next((key for key in REMOVED if key.path == name), None)


def is_recording(file: Path) -> bool:
    """True for the recorded experiment of a run, False for one that a user wrote."""
    return file.name == RECORDING and any((file.parent / name).exists() for name in _BESIDE)


def drop_removed(sources: Sources) -> None:
    """Takes removed keys out of a recording and names them in one line on stderr. Those of `--set`
    stay, and are refused."""
    if not is_recording(sources.file):
        return
    gone: list[str] = []
    for path, owner in list(_keys(sources.values)):
        if find_removed(path) is not None and sources.origin(path) != "--set":
            del owner[str(path[-1])]
            gone.append(dotted(path))
    if gone:
        _say(str(sources.file), ", ".join(gone))


@cache  # some commands read a recording twice
def _say(file: str, names: str) -> None:
    logger.warning("%s: keys of an earlier forge are ignored: %s", file, names)


def _keys(values: TomlTable) -> Iterator[tuple[KeyPath, TomlTable]]:
    """Paths of the keys of all tables and stages, each with the table that contains it."""
    for table, content in values.items():
        if isinstance(content, dict):
            yield from (((table, key), content) for key in content)
        elif isinstance(content, list):
            for index, one in enumerate(content):
                if isinstance(one, dict):
                    yield from (((table, index, key), one) for key in one)
