"""`forge --install-completion`: commands, recipes and runs in a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def complete(words: str, folder: Path) -> list[str]:
    """Words that bash offers for the last one of a command line."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "_FORGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "forge"], cwd=folder, env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("forge ru", ["run", "runs"]),
        ("forge init qui", ["quickstart"]),
        ("forge show ", ["quick-2", "quick-1", "last"]),
        ("forge run ", []),
    ],
)
def test_commands_recipes_and_runs_are_offered(words, offered, tmp_path):
    for number in (1, 2):
        run = tmp_path / "runs" / f"quick-{number}"
        run.mkdir(parents=True)
        (run / "run.db").touch()
        os.utime(run / "run.db", (number, number))
    assert complete(words, tmp_path) == offered, "an empty answer leaves files to the shell"
