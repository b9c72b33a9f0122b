"""The record of a reward function's file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forge.rollout.rewards.scorer import FunctionFile
from forge.runner.reward_function import to_event

FILE = FunctionFile(path=Path("/x/mine.py"), name="score", sha256="ab" * 32)


def test_a_file_is_recorded_once():
    event = to_event(FILE, before={})
    assert event is not None
    assert event.message == "reward.function: /x/mine.py:score, sha256 abababababab"
    assert to_event(FILE, before=event.data) is None


def test_a_changed_file_is_recorded_and_said():
    event = to_event(replace(FILE, sha256="cd" * 32), before=FILE.to_json())
    assert event is not None
    assert "it has changed since the last attempt (abababababab)" in event.message


def test_a_moved_file_is_recorded():
    event = to_event(replace(FILE, path=Path("/y/mine.py")), before=FILE.to_json())
    assert event is not None
    assert event.message.endswith("it was /x/mine.py:score")
