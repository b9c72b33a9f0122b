"""The trainer's client of control.sock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.config.schema import GrpoStage
from forge.process.answers import Answer
from forge.train.trainer.child import control
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from tests.train.trained import settings_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_publish_may_take_as_long_as_the_settings_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def send(*_request: Any, server: str, timeout_s: float) -> Answer:
        waits.append(timeout_s)
        return Answer(status=200, content=b'{"version": 7}')

    monkeypatch.setattr(control, "send_blocking", send)
    stage = GrpoStage(kind="grpo", steps=1, learning_rate=1e-3)
    settings = settings_of(stage, tmp_path, tmp_path, publish_timeout_s=4200.0)
    client = SupervisorClient(settings, stop=StopFlag())
    assert client.publish(step=1, path=tmp_path, probe={}) == 7
    assert waits == [4200.0]
