"""The table of played cells: a JSON file each while they are played, and all of them at the end.

Workers of a parallel run write to the same folder: `FORGE_CHAOS_OUT`, else `.pytest_cache/chaos`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.driver import Result

TITLES = ("cell", "result", "struck command", "resumed", "s", "CPU s", "reason")
HEAD = f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|\n"


def folder(root: Path) -> Path:
    """Folder of the table."""
    path = Path(os.environ.get("FORGE_CHAOS_OUT") or root / ".pytest_cache" / "chaos")
    (path / "cells").mkdir(parents=True, exist_ok=True)
    return path


def record(result: Result, root: Path) -> None:
    """Write one result; a later one of the same cell replaces it."""
    name = result.cell.replace("/", "_").replace("*", "x")
    (folder(root) / "cells" / f"{name}.json").write_text(json.dumps(asdict(result)))


def write_table(root: Path) -> Path | None:
    """Write `cells.json` and `cells.md` from all results; returns the second, None without any."""
    path = folder(root)
    results = [json.loads(file.read_text()) for file in sorted((path / "cells").glob("*.json"))]
    if not results:
        return None
    (path / "cells.json").write_text(json.dumps(results, indent=1) + "\n")
    counts = {kind: sum(outcome(each) == kind for each in results) for kind in KINDS}
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    rows = "".join(_row(each) for each in results)
    (path / "cells.md").write_text(f"{len(results)} cells: {totals}\n\n{HEAD}{rows}")
    return path / "cells.md"


KINDS = ("passed", "failed", "skipped")


def outcome(result: dict[str, Any]) -> str:
    """Passed, failed or skipped."""
    if result["skipped"]:
        return "skipped"
    return "failed" if result["faults"] else "passed"


def _row(result: dict[str, Any]) -> str:
    reason = result["skipped"] or "; ".join(result["faults"]) or result["said"]
    cells = (
        result["cell"], outcome(result), result["seen"], result["resumed"],
        f"{result['seconds']:.0f}", f"{result['cpu_s']:.0f}",
        " ".join(reason.split()).replace("|", "\\|")[:400],
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"
