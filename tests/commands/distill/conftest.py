"""Fixtures of the tests of `forge data distill`: a teacher that is asked again without a pause."""

from __future__ import annotations

from pathlib import Path

import pytest

import forge.serve.remote.teacher
import forge.serve.remote.url_client
from tests.commands.distill.teaching import FakeTeacher


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTeacher:
    monkeypatch.setattr(forge.serve.remote.teacher, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(forge.serve.remote.url_client, "BUSY_PAUSE_S", 0.001)
    return FakeTeacher(tmp_path / "s")
