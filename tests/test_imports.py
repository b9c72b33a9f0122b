"""Who may import whom (design, section 3), and that the host needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORGE = ROOT / "forge"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "config": {"errors", "records"},
    "process": {"errors", "records"},
    "store": {"errors", "records"},
    "data": {"errors", "records", "config"},
    "serve": {"errors", "process", "records", "config"},
    "evalpool": {"errors", "process", "records", "config"},
    "rewards": {"errors", "records", "config"},
    "rollout": {"errors", "records", "rewards", "data"},
    "train": {"errors", "process", "records", "config", "control"},
    "views": {"errors", "store", "records"},
    "control": {"errors", "records"},
    "tui": {"errors", "records", "views", "store", "control"},
    "install": {"errors"},
}
"""By folder of forge/; `runner`, `cli` and `exits` may import everything."""

EXCEPTIONS: dict[str, set[str]] = {
    # The reward's settings pass through a rollout on their way to rewards.
    "forge/rollout/play.py": {"config"},
    # An engine renders a chat with the same template code as training.
    "forge/serve/engine/chat.py": {"data"},
}
"""Single files that may import more, by path below the root."""

HEAVY = ("torch", "triton", "transformers", "trl", "datasets", "peft", "vllm")
CHILD_FOLDERS = (
    "forge/evalpool/judge",
    "forge/serve/hf",
    "forge/serve/vllm",
    "forge/train/trainer",
)


def modules() -> list[Path]:
    return sorted([*FORGE.rglob("*.py"), *(ROOT / "tui").rglob("*.py")])


def part_of(path: Path) -> str:
    inside = path.relative_to(ROOT).with_suffix("").parts
    return inside[0] if inside[0] == "tui" or len(inside) == 1 else inside[1]


def imported_parts(path: Path) -> set[str]:
    """Folders of forge that a module imports anywhere in it, names for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "forge":
                names = [f"forge.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("forge.")}
        found |= {"tui" for name in names if name.split(".")[0] == "tui"}
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = part_of(path)
    if part not in ALLOWED:
        assert part in ("forge", "runner", "cli", "exits", "__init__", "__main__"), (
            f"{part} is not in the table"
        )
        return
    extra = EXCEPTIONS.get(str(path.relative_to(ROOT)), set())
    assert imported_parts(path) - ALLOWED[part] - {part} - extra == set()


def test_every_folder_of_the_table_exists():
    folders = {path.name for path in FORGE.iterdir() if (path / "__init__.py").exists()}
    assert folders - {"runner", "cli"} == set(ALLOWED) - {"errors", "tui"}


def test_the_host_imports_no_torch():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        if not str(path.relative_to(ROOT)).startswith(CHILD_FOLDERS) and path.name != "__main__.py"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {HEAVY}: sys.modules[name] = None\n"
        f"for name in {names}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
