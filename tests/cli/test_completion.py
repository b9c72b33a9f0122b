"""`forge --install-completion`: commands, recipes and runs in a shell."""

import os
import shutil
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
def test_commands_recipes_and_runs_are_offered(
    words: str, offered: list[str], tmp_path: Path
) -> None:
    for number in (1, 2):
        run = tmp_path / "runs" / f"quick-{number}"
        run.mkdir(parents=True)
        (run / "run.db").touch()
        os.utime(run / "run.db", (number, number))
    assert complete(words, tmp_path) == offered, "an empty answer leaves files to the shell"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_installed_completion_is_read_by_a_new_shell(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    script = f"{sys.executable} -m forge --install-completion; complete -p forge"
    argv = ["bash", "--rcfile", str(tmp_path / ".bashrc"), "-i", "-c"]
    first = subprocess.run([*argv, script], env=env, capture_output=True, text=True, timeout=60)
    assert "bash completion installed" in first.stdout
    new = subprocess.run(
        [*argv, "complete -p forge"], env=env, capture_output=True, text=True, timeout=60
    )
    assert new.stdout == "complete -o default -F _forge_completion forge\n"
