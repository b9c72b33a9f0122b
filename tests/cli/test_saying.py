"""A message that ends a wait is printed once, after the spinner has ended; output to a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.syntax import Syntax
from rich.text import Text

from forge.cli import run_command
from forge.cli.printing import print_rich
from forge.commands import serve as serving

if TYPE_CHECKING:
    import pytest


def test_forge_serve_prints_the_address_of_its_engines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(request: Any, *, store_dir: Any, say: Any) -> None:
        say(f"{request.source} at http://127.0.0.1:8000")

    monkeypatch.setattr(serving, "serve", serve)
    assert run_command(["serve", "toy-1"]) == 0
    assert capsys.readouterr().err == "toy-1 at http://127.0.0.1:8000\n"


def test_a_table_in_a_pipe_has_no_spaces_at_the_ends_of_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rich(Syntax("def f():\n    return 1  # \u2028", "python"))
    assert capsys.readouterr().out == "def f():\n    return 1  # \u2028\n"
    print_rich(Text("a" * 150))
    assert capsys.readouterr().out == "a" * 150 + "\n", "lines are long"
