"""A run whose work is replaced by a function, for tests of the supervisor."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.load import load_experiment
from forge.exits import Ending, ending_of
from forge.runner import run as run_module
from forge.runner.live.progress import Console
from forge.runner.past import EarlierAttempts
from forge.runner.plan.placement import Placement
from forge.runner.run import _supervise
from forge.runner.work import Work
from forge.store.layout import RunPaths, create_run, write_file

EXPERIMENT = """\
name = "x"
[model]
init = "tiny"
[[stage]]
kind = "eval"
"""


class Supervised:
    """A run whose work is replaced by a function."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "x.toml").write_text(EXPERIMENT)
        self.experiment = load_experiment(folder / "x.toml")
        self.paths: RunPaths = create_run("x", store_dir=folder)
        write_file(self.paths.experiment, EXPERIMENT)
        self.placement = Placement()
        self._patch = monkeypatch.setattr
        self._patch(run_module, "log_to", lambda path: None)
        self._patch(run_module, "collect_less_often", lambda: None)  # for the whole process
        self._patch("forge.runner.outlets.summary.show_summary", lambda *given: None)

    async def end(self, work: Callable[[Work], Awaitable[None]]) -> Ending | None:
        self._patch(Work, "run_to_end", work)
        try:
            with anyio.fail_after(20):
                await _supervise(
                    self.paths,
                    self.experiment,
                    EarlierAttempts(),
                    Console(quiet=True),
                    self.placement,
                )
        except Exception as error:
            return ending_of(error)
        return None

    def row(self, query: str) -> tuple[Any, ...]:
        with closing(sqlite3.connect(self.paths.run_db)) as db:
            return db.execute(query).fetchone()

    @property
    def recorded(self) -> tuple[int, str]:
        code, reason = self.row("SELECT exit_code, reason FROM attempts")
        return code, reason
