"""The trainer's side of control.sock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.process.ask import Answer
from forge.train.trainer.child import control
from forge.train.trainer.child.control import StopFlag, SupervisorClient

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_publish_is_waited_for_as_long_as_the_runner_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def send(*_request: Any, server: str, timeout_s: float) -> Answer:
        waits.append(timeout_s)
        return Answer(status=200, content=b'{"version": 7}')

    monkeypatch.setattr(control, "send_blocking", send)
    trainer = SupervisorClient(tmp_path / "none.sock", stop=StopFlag(), publish_timeout_s=4200.0)
    assert trainer.publish(step=1, path=tmp_path, probe={}) == 7
    assert waits == [4200.0]
