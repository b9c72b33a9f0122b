"""Fixtures of the screen tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Textual runs on asyncio only."""
    return "asyncio"
