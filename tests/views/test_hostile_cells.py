"""A model's text is unchanged in files and made printable on terminals."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
from pathlib import Path

import anyio
import pytest

from forge.views.text.terminal import json_text
from tests.store.storefactory import attempt, group, problem, turn, write_run
from tests.views.terminals import EVIL, command


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evil") / "toy-1"
    played = group(0, [])
    anyio.run(write_run, root, [attempt(), problem(0), played, turn(0, completion=EVIL)])
    return root


def on_a_terminal(argv: list[str]) -> str:
    """Output of the command on a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen(argv, stdout=its, stderr=its, stdin=subprocess.DEVNULL) as child:
        os.close(its)
        out = b""
        try:
            while read := os.read(ours, 65536):
                out += read
        except OSError:  # Linux says so when the last writer has gone
            pass
        finally:
            os.close(ours)
    assert child.returncode == 0
    return out.decode()


@pytest.mark.parametrize("form", ["--csv", "--json", None])
def test_no_cell_controls_the_terminal(evil: Path, form: str | None) -> None:
    query = "SELECT completion FROM v_turns"
    argv = command("sql", str(evil), query, *([form] if form else []))
    text = on_a_terminal(argv)
    assert "gnp.exe" in text
    assert not set("\x07\x9b\u202e") & set(text)
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text


def test_a_file_gets_the_exact_text(evil: Path) -> None:
    query = "SELECT completion FROM v_turns"
    done = subprocess.run(
        command("sql", str(evil), query, "--csv"), capture_output=True, check=True
    )
    rows = list(csv.reader(io.StringIO(done.stdout.decode(), newline="")))
    assert rows == [["completion"], [EVIL]]
    done = subprocess.run(
        command("sql", str(evil), query, "--json"), capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [{"completion": EVIL}]


def test_json_has_the_same_value_with_control_characters_escaped() -> None:
    text = json_text({"x": EVIL + "\ud800\x7f é 漢"})
    assert json.loads(text) == {"x": EVIL + "\ud800\x7f é 漢"}
    assert not set("\x1b\x07\x9b\u202e\r\x7f\ud800") & set(text)
    assert "é 漢" in text
