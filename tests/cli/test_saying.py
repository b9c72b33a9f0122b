"""A message that ends a wait is printed once, after the spinner has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.cli import run_command
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
