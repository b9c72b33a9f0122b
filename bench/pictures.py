"""Draws the pictures of the documents from a finished run: each screen of the monitor as SVG, and,
where Chromium is installed, the top of the report as PNG.

    make pictures RUN=runs/quickstart-1             # docs/tui/*.svg, docs/pictures/report.png
    make pictures RUN=runs/h200-from-scratch-1 INTO=/tmp/gpu    # all of them there

Run it after a change of a screen or of the report. The monitor is the real one, on the run's store.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # tests/ is not an installed package

from forge.store.layout import RunPaths, find_run  # noqa: E402
from forge.views.report.page import write_report  # noqa: E402
from tests.tui.watching import LARGE, watching  # noqa: E402

DOCS = ROOT / "docs"
MEDIUM = (120, 40)
SCREENS: dict[str, tuple[tuple[int, int], list[str]]] = {
    "run": (MEDIUM, []),
    "run-wide": (LARGE, []),
    "problems": (MEDIUM, ["2"]),
    "rollout": (MEDIUM, ["3"]),
    "kernels": (MEDIUM, ["4"]),
    "logs": (MEDIUM, ["5"]),
    "runs": (MEDIUM, ["6"]),
}
"""Terminal size and keys of each picture of a screen, by file name."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REPORT_SIZE = (1200, 1500)
"""Width and height of the picture of the report."""


async def draw_screens(run: RunPaths, folder: Path) -> None:
    """Writes `<name>.svg` for each screen."""
    for name, (size, keys) in SCREENS.items():
        async with watching(run, size=size, keys=keys, now=time.time()) as pilot:
            svg = pilot.app.export_screenshot(title=f"forge tui {run.name}", simplify=True)
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"{folder / name}.svg: {len(svg) // 1000} kB")


def draw_report(run: RunPaths, into: Path) -> None:
    """Writes the top of the report as PNG; does nothing without Chromium."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print(f"{into}: unchanged, since there is no Chromium on PATH")
        return
    # Chromium's last processes may still write into its profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = write_report(run, out=Path(folder) / "report.html")
        options = [
            "--headless", "--no-sandbox", f"--user-data-dir={folder}/profile",
            f"--screenshot={into.resolve()}", f"--window-size={','.join(map(str, REPORT_SIZE))}",
        ]  # fmt: skip
        subprocess.run([program, *options, page.resolve().as_uri()], check=True)
    print(f"{into}: {into.stat().st_size // 1000} kB")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    into = Path(sys.argv[2]) if len(sys.argv) == 3 else None
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
    named = find_run(sys.argv[1], store_dir=Path("runs"))
    with tempfile.TemporaryDirectory() as folder:
        # A copy: the Runs screen shows the run alone, and nothing can be written to it.
        root = Path(folder) / "runs" / named.root.name
        shutil.copytree(named.root, root, ignore=shutil.ignore_patterns("weights", "checkpoints"))
        run = RunPaths(root)
        asyncio.run(draw_screens(run, into or DOCS / "tui"))
        draw_report(run, (into or DOCS / "pictures") / "report.png")


if __name__ == "__main__":
    main()
