# pyright: strict
"""Weights of a replica: directories, and the policy version that they are. Promise: an adapter
always comes with the checkpoint it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One policy version, as directories."""

    full: Path
    adapter: Path | None = None
    version: int = 0
    """Policy version of both together."""
    full_version: int = 0
    """Policy version under which `full` was published; path and version identify a checkpoint."""

    def then(self, path: Path, *, version: int) -> Weights:
        """The weights after publishing a directory: a checkpoint, or an adapter on the last one."""
        if (path / "adapter_config.json").exists():
            return replace(self, adapter=path, version=version)
        return Weights(full=path, version=version, full_version=version)

    def to_json(self, record: Callable[[Path], str] = str) -> dict[str, Any]:
        """JSON for an event of the store; `record` gives each path as the store has it."""
        adapter = self.adapter and record(self.adapter)
        return {**asdict(self), "full": record(self.full), "adapter": adapter}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], find: Callable[[str], Path] = Path) -> Weights:
        """Inverse of `to_json`, with `find` the inverse of `record`."""
        adapter = None if data["adapter"] is None else find(data["adapter"])
        versions = {name: data[name] for name in ("version", "full_version")}
        return cls(full=find(data["full"]), adapter=adapter, **versions)

    @property
    def base(self) -> Weights:
        return Weights(full=self.full, version=self.full_version, full_version=self.full_version)

    def paths_from(self, served: Weights | None) -> list[Path]:
        """Directories to load, in order, into an engine that serves `served` (None: unknown)."""
        if self.adapter is None:
            return [self.full]
        is_on_it = served is not None and served.base == self.base
        return [self.adapter] if is_on_it else [self.full, self.adapter]
