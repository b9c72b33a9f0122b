"""The code that runs here: the commit of this forge, that of its checkout or the one that its wheel
was built from; a digest of its sources; and versions of packages.

A wheel has it in `forge/commit.txt`, which its build writes (`hatch_build.py` loads this file, so
it imports the standard library only); a checkout asks git.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
RECORD = "commit.txt"
"""Name of the file in the package."""
PARTS = ("forge", "tui", "experiments")
"""Folders of a checkout that are part of a wheel."""
CHANGED = "changed"
LONGEST_COMMIT = 12
DIGITS = 12
"""Digits of the digest of sources."""
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOrigin:
    """The commit, and whether the sources differ from it."""

    commit: str = ""
    """40 digits; empty if it is not known."""
    is_changed: bool = False

    @property
    def record(self) -> str:
        """Content of the file in a wheel."""
        return " ".join([self.commit, *([CHANGED] if self.is_changed else [])]) + "\n"

    def __str__(self) -> str:
        """` (commit 694c58391a24, changed)`; empty if it is not known."""
        if not self.commit:
            return ""
        changed = f", {CHANGED}" if self.is_changed else ""
        return f" (commit {self.commit[:LONGEST_COMMIT]}{changed})"


def read_origin(package: Path = PACKAGE) -> CodeOrigin:
    """The origin of a package, by git or by the record of its build."""
    if commit := git("rev-parse", "HEAD", package=package).strip():
        changes = git("status", "--porcelain", "--", *PARTS, package=package)
        return CodeOrigin(commit=commit, is_changed=bool(changes))
    return read_record(package)


def read_record(package: Path = PACKAGE) -> CodeOrigin:
    """The origin that the build of a wheel recorded."""
    try:
        commit, _, rest = (package / RECORD).read_text(encoding="utf-8").strip().partition(" ")
    except OSError:
        return CodeOrigin()
    return CodeOrigin(commit=commit, is_changed=rest == CHANGED)


def git(*args: str, package: Path = PACKAGE) -> str:
    """Output of git in the checkout that a package belongs to; empty if there is none.

    A package that is installed below a repository of the user is no part of it.
    """
    root = package.parent
    if not (root / ".git").exists():
        return ""
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout if ran.returncode == 0 else ""


@cache
def source_digest() -> str:
    """Digest of the paths and contents of forge's Python files.

    The monitor is left out: it is no part of a run, and in a checkout it is a link.
    """
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "tui"):
            continue
        found.update(f"{path.relative_to(PACKAGE)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:DIGITS]


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed. Imports none of them."""
    found: dict[str, str] = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
