"""Hook of MkDocs (mkdocs.yml, `hooks`): adds the generated pages when the site is built."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def on_files(files: Any, config: Any) -> Any:
    """Adds each page as a file that lies nowhere on disk."""
    sys.path.insert(0, str(ROOT))
    try:
        from docs.generate.pages import PAGES
    finally:
        sys.path.remove(str(ROOT))
    # MkDocs is installed by `make docs` alone; the type checker runs without it.
    file = import_module("mkdocs.structure.files").File
    for name, made in PAGES.items():
        files.append(file.generated(config, name, content=made()))
    return files
