"""A harvest's child reports within bounds."""

from typing import Any

import pytest

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.harvest.asking import ask_harvester

SIZES = {"step": "sizes", "source": "a", "alternatives": ["b"],
         "groups": [{"text": "a", "other": "b", "large": ["c"]}]}  # fmt: skip
RAN = {"text": 1, "tensors": 1, "outputs": 1, "operations": 3, "cpu_s": 0.1}
ANSWER = {"step": "answer", "source": "a", "task": {}}
MADE = {"is_answered": True, "code": "x", "policy": "own", "kernels": ["k"], "products": 0,
        "literals": []}  # fmt: skip


class Spawner:
    """Children that do nothing."""

    def spawn(self, **_: Any) -> Any:
        return type("Child", (), {"sock": None})

    def end(self, child: Any) -> None:
        """Nothing runs."""


@pytest.mark.parametrize(
    ("request_", "body", "is_done"),
    [
        (SIZES, {**RAN, "group": 0, "large": 0}, True),
        (SIZES, RAN, True),
        (SIZES, {}, False),
        (SIZES, {**RAN, "text": 2}, False),
        (SIZES, {**RAN, "text": "0"}, False),
        (SIZES, {**RAN, "group": -1}, False),
        (SIZES, {**RAN, "group": 0, "large": 1}, False),
        (ANSWER, MADE, True),
        (ANSWER, {"is_answered": False, "reason": "random", "detail": ""}, True),
        (ANSWER, {**MADE, "code": "\ud800"}, False),
        (ANSWER, {**MADE, "kernels": 3}, False),
        (ANSWER, {"is_answered": False, "reason": 3, "detail": ""}, False),
    ],
)
def test_a_result_that_the_child_does_not_make_is_a_crash(
    request_: dict[str, Any], body: Any, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = type("Frame", (), {"kind": Kind.DONE, "body": body})
    monkeypatch.setattr(frames, "send", lambda *_: None)
    monkeypatch.setattr(frames, "receive", lambda *_, **__: frame)
    spawner: Any = Spawner()
    answer = ask_harvester(spawner, request_, limit_s=1.0)
    assert answer.get("failed") == (None if is_done else "crash")
