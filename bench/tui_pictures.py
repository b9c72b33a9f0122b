"""Draws each screen of the terminal monitor as SVG, on the canned quickstart of the tests.

    .venv/bin/python bench/tui_pictures.py [docs/tui]

The README shows them. Run it after a change of a screen; it uses the clock of the tests, so that
nothing else differs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # tests/ is not an installed package

from tests import canned  # noqa: E402
from tests.tui.watching import LARGE, SMALL, watching  # noqa: E402

PICTURES: dict[str, tuple[tuple[int, int], list[str]]] = {
    "run": (SMALL, []),
    "run-wide": (LARGE, []),
    "problems": (SMALL, ["2"]),
    "rollout": (SMALL, ["3"]),
    "kernels": (SMALL, ["4"]),
    "logs": (SMALL, ["5"]),
    "runs": (SMALL, ["6"]),
}
"""Terminal size and keys for each picture, by file name."""


async def draw(into: Path) -> None:
    """Writes `<name>.svg` for each screen."""
    with tempfile.TemporaryDirectory() as folder:
        run = canned.unpack(Path(folder))
        for name, (size, keys) in PICTURES.items():
            async with watching(run, size=size, keys=keys) as pilot:
                svg = pilot.app.export_screenshot(title=f"forge tui: {name}", simplify=True)
            (into / f"{name}.svg").write_text(svg, encoding="utf-8")
            print(f"{into / name}.svg: {len(svg) // 1000} kB")


def main() -> None:
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "tui"
    into.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(into))


if __name__ == "__main__":
    main()
