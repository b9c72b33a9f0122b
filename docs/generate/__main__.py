"""Writes the generated pages to files: `python -m docs.generate DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.pages import PAGES


def write_pages(root: Path) -> None:
    """Each page at its path below `root`."""
    for name, made in PAGES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m docs.generate: found no directory, or several; DIR")
    write_pages(Path(sys.argv[1]))
