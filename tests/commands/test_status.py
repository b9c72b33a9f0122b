"""`forge status` of a run whose supervisor is silent: what the store has, then exit 5."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import pytest

from forge.cli import run_command
from forge.control import client
from forge.process.sockets import open_socket_dir
from forge.store.ownership import open_run_lock, read_status, write_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge.store.layout import RunPaths


@pytest.fixture
def control_socket(canned_run: RunPaths) -> Iterator[Path]:
    """The path that a running supervisor has recorded; nothing is there yet."""
    with open_socket_dir() as folder, open_run_lock(canned_run):
        path = folder / "control.sock"
        found = {"control_socket": str(path), "pid": os.getpid()}
        write_status(canned_run, read_status(canned_run) | found)
        yield path


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_silent_supervisor_is_an_exit_code_behind_what_the_store_has(
    canned_run: RunPaths,
    control_socket: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(client.ControlClient.__init__, "__kwdefaults__", {"timeout_s": 0.1})
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(control_socket))
        silent.listen()
        code = run_command(["status", str(canned_run.root), *options])
    said = capsys.readouterr()
    assert code == 5
    assert "was silent for 0.1 s; asked: GET /status" in said.err
    assert "quickstart-1" in said.out
    if options:
        assert "was silent for 0.1 s" in json.loads(said.out)["silence"]


def test_a_supervisor_that_has_just_begun_is_no_failure(
    canned_run: RunPaths, control_socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not control_socket.exists()
    assert run_command(["status", str(canned_run.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["silence"] is None
