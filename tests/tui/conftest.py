"""Fixtures of the screen tests."""

import pytest
from textual import _wait, constants
from textual._compositor import Compositor

LOOK_S = 0.005
"""How often textual's pilot looks whether the process is idle; its own period is 20 ms."""


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and pauses take little longer than their effect; `settle` decides when it is complete.

    Without animations, since the text between two frames does not change.
    """
    monkeypatch.setattr(constants, "TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", LOOK_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", LOOK_S / 20)
    monkeypatch.setattr("textual.app.App.NOTIFICATION_TIMEOUT", 600)  # tests count toasts


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws a screen only where a test reads it (`text_of`).

    An app also draws every change for a terminal, which a test's app does not have: a third of its
    time.
    """

    def forget(compositor: Compositor, **how: object) -> None:
        compositor._dirty_regions.clear()

    monkeypatch.setattr(Compositor, "render_update", forget)
