"""The commit of the checkout that forge runs from, for `forge --version`."""

# pyright: strict
from __future__ import annotations

import subprocess
from pathlib import Path

import forge

TIMEOUT_S = 5.0
LONGEST_COMMIT = 12


def describe_checkout() -> str:
    """` (commit 694c58391a24, changed)`; empty for an installed package."""
    root = Path(forge.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "HEAD")[:LONGEST_COMMIT]
    if not commit:
        return ""
    is_changed = bool(_git(root, "status", "--porcelain", "--", "forge", "tui"))
    return f" (commit {commit}{', changed' if is_changed else ''})"


def _git(root: Path, *args: str) -> str:
    """Output of git; empty if it fails."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()
