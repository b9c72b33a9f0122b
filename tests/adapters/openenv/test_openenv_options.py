"""Options of `forge judge --serve --openenv`: one line for each that cannot be used."""

from importlib.machinery import ModuleSpec

import pytest

from forge.adapters.openenv import server
from forge.cli import run_command

LISTEN = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--openenv",), "--openenv: belongs to --serve"),
        (("--serve", "--turns", "3", *LISTEN), "--turns: belongs to --openenv"),
        (("--serve", "--openenv", "--turns", "17", *LISTEN), "--turns 17: 1 to 16"),
        (("nowhere", "--serve", "--openenv", *LISTEN), "nowhere: no such directory or file"),
        (("FOLDER", "c.py", "--serve", "--openenv", *LISTEN), "takes no CANDIDATE"),
        (("FOLDER", "--serve", "--openenv"), "needs either --socket PATH or --listen"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(server, "find_spec", lambda name: ModuleSpec(name, None))
    given = [str(tmp_path) if each == "FOLDER" else each for each in argv]
    assert run_command(["judge", *given, "--device", "cpu"]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.strip().count("\n") == 0


def test_a_missing_package_is_named_with_its_installation(monkeypatch, capsys):
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    assert run_command(["judge", "--serve", "--openenv", *LISTEN, "--device", "cpu"]) == 3
    assert "pip install 'forge-kernels[openenv]'" in capsys.readouterr().err
