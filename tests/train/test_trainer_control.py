"""The trainer's side of control.sock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from forge.train.trainer.child.control import StopFlag, SupervisorClient

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_publish_is_waited_for_as_long_as_the_runner_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def post(path: str, *, json: Any, timeout: float) -> httpx.Response:
        waits.append(timeout)
        return httpx.Response(200, json={"version": 7})

    control = SupervisorClient(tmp_path / "none.sock", stop=StopFlag(), publish_timeout_s=4200.0)
    monkeypatch.setattr(control._client, "post", post)
    assert control.publish(step=1, path=tmp_path, probe={}) == 7
    control.close()
    assert waits == [4200.0]
