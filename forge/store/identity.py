"""Identity of a run: an id that stays when its directory is moved and that a copy does not share.

`identity.json` in the run directory has the id, and the place where the run last was: path, device
and inode. `settle_identity` compares the place with the present one when an attempt begins:

    same path and inode                          nothing has happened
    same device and inode                        renamed
    other inode, another directory has the id    a copy beside its original: gets an id of its own
    other inode, no other directory has it       moved to another disk, or restored

Each change is an event of kind `identity` with the same fields, so the file can be restored from
the store, and the other way round.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forge.records import Event
from forge.store.layout import RunPaths, write_file
from forge.store.resume import events

if TYPE_CHECKING:
    from forge.store.reader import RunReader

KIND = "identity"
"""Kind of the events that record an identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Id of a run, and its directory when it was last written."""

    id: str
    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Identity | None:
        """Inverse of `asdict`; None for anything else."""
        kinds = {"id": str, "path": str, "device": int, "inode": int}
        if any(type(data.get(name)) is not kind for name, kind in kinds.items()):
            return None
        return cls(**{name: data[name] for name in kinds})

    def to_json(self) -> str:
        """Content of `identity.json`."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The identity of a run whose attempt begins."""

    identity: Identity
    news: str = ""
    """One line for the user if the directory was moved or copied."""
    is_recorded: bool = True
    """False if the store does not have this identity yet."""

    def event(self, *, at: float) -> Event:
        """The event that records it."""
        message = self.news or f"id {self.identity.id}"
        return Event(at=at, kind=KIND, message=message, data=asdict(self.identity))


def read_identity(paths: RunPaths) -> Identity | None:
    """The identity in the run directory; None if there is no readable one."""
    try:
        data = json.loads(paths.identity.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return Identity.of(cast("dict[str, Any]", data)) if isinstance(data, dict) else None


def recorded_identity(reader: RunReader) -> Identity | None:
    """The last identity in the store; None before an attempt recorded one."""
    found = events(reader, kind=KIND)
    return Identity.of(found[-1].data) if found else None


def settle_identity(paths: RunPaths, *, recorded: Identity | None = None) -> Settled:
    """Gives a run its identity at the beginning of an attempt, and writes `identity.json`.

    Args:
        recorded: the identity that the store has.
    """
    found = read_identity(paths) or recorded
    identity, news = _identify(paths, found)
    if identity != read_identity(paths):
        write_file(paths.identity, identity.to_json())
    return Settled(identity=identity, news=news, is_recorded=identity == recorded)


def present_identity(paths: RunPaths) -> Identity | None:
    """The identity with its present place, for a copy that knows its original; None if the run
    directory has none."""
    found = read_identity(paths)
    return None if found is None else _identify(paths, found)[0]


def _identify(paths: RunPaths, found: Identity | None) -> tuple[Identity, str]:
    stat = paths.root.stat()
    new = Identity(
        id=secrets.token_hex(8), path=str(paths.root), device=stat.st_dev, inode=stat.st_ino
    )
    if found is None:
        return new, ""
    here = replace(new, id=found.id)
    if (found.path, found.inode) == (here.path, here.inode):
        return here, ""
    is_renamed = (found.device, found.inode) == (here.device, here.inode)
    if not is_renamed and (original := _other_with(found, paths)) is not None:
        copy = f"{_shown(paths.name)} is a copy of {_shown(original)}"
        return new, f"{copy}; it is a run of its own now, with id {new.id}"
    moved = f"{_shown(paths.name)} was moved here from {_shown(found.path)}"
    return here, "" if found.path == here.path else moved


def _shown(path: str | Path) -> str:
    """A path for a line on a terminal; a foreign archive may name anything."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _other_with(found: Identity, paths: RunPaths) -> Path | None:
    """Another run directory with this id: where the run was, or beside there or here."""
    for folder in _places(found, paths):
        other = read_identity(RunPaths(folder))
        if other is not None and other.id == found.id and not _is_same(folder, paths.root):
            return folder
    return None


def _places(found: Identity, paths: RunPaths) -> Iterator[Path]:
    was = Path(found.path)
    yield was
    for store_dir in dict.fromkeys((was.parent, paths.root.parent)):
        with suppress(OSError):
            yield from sorted(store_dir.iterdir())


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
