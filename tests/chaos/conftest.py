"""The taught model of a session, and the table at its end."""

from __future__ import annotations

import pytest

from tests.chaos.table import write_table
from tests.chaos.tiny_experiments import Taught


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Taught:
    """Made once for all workers of a session."""
    base = tmp_path_factory.getbasetemp()
    return Taught(folder=(base if worker_id == "master" else base.parent) / "taught")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, once for all workers."""
    if not hasattr(session.config, "workerinput"):
        write_table(session.config.rootpath)
