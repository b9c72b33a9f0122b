"""Build hook of wheels and source distributions: `forge/commit.txt`, the commit of the checkout.

Without git (a source distribution, an unpacked archive) the file that is there stays.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds the commit to what is built; an editable installation asks git instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build."""
        origin = load_origin(Path(self.root))
        found = origin.read_origin(Path(self.root) / "forge")
        if version == "editable" or not (Path(self.root) / ".git").exists() or not found.commit:
            return
        self._folder = TemporaryDirectory()
        record = Path(self._folder.name) / origin.RECORD
        record.write_text(found.record, encoding="utf-8")
        build_data["force_include"][str(record)] = f"forge/{origin.RECORD}"


def load_origin(root: Path) -> Any:
    """The module forge.origin, without forge itself."""
    name = "origin"
    spec = importlib.util.spec_from_file_location(name, root / "forge" / "origin.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
