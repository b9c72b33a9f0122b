"""Measured baselines, kept between judgements and runs in `$XDG_CACHE_HOME/forge/baselines.db`.

Called by `gpu_trial.py` under the card's exclusive lease. A baseline is kept by everything that it
depends on (problem, precision, TF32, card, driver, harness) and with the time of a fixed piece of
work of the judge's own then (the probe): where the same work takes another time now, clocks or
neighbours have changed, and the baseline is measured again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forge.evalpool.judge.clock import Clocked, spread

MAX_DRIFT = 0.05
"""Of the probe: within it a kept baseline is used."""
MAX_SPREAD = 0.1
"""Interquartile range over median. An idle H200: 0.0005 to 0.03."""
EVENT_RESOLUTION_US = 1.0
BUSY_S = 10.0
SCHEMA = """CREATE TABLE IF NOT EXISTS baselines (
    key TEXT PRIMARY KEY,      -- hash of problem, precision, card, driver and harness
    event_us TEXT NOT NULL,    -- JSON: GPU time of each call
    probe_us REAL NOT NULL     -- the judge's own piece of work at that time
) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the reference took on this card."""

    event_us: tuple[float, ...]
    probe_us: float

    def is_current(self, probe_us: float) -> bool:
        """Whether the card is as fast as it was then."""
        return abs(probe_us / self.probe_us - 1) <= MAX_DRIFT

    def is_steady(self) -> bool:
        """Whether its calls took about the same: else somebody was on the card beside it."""
        samples = np.asarray(self.event_us)
        return spread(samples) <= MAX_SPREAD * float(np.median(samples)) + EVENT_RESOLUTION_US

    def clocked(self) -> Clocked:
        """As a candidate's time is. The reference's process is believed."""
        samples = np.asarray(self.event_us)
        return Clocked(
            us=float(np.median(samples)),
            samples_us=self.event_us,
            spread_us=spread(samples),
            resolution_us=0.0,
        )


class Baselines:
    """The file. A connection a call: judges and runs share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(SCHEMA)

    def get(self, key: str) -> Baseline | None:
        with closing(self._open()) as db:
            query = "SELECT event_us, probe_us FROM baselines WHERE key = ?"
            row = db.execute(query, (key,)).fetchone()
        if row is None:
            return None
        return Baseline(event_us=tuple(json.loads(row[0])), probe_us=row[1])

    def put(self, key: str, baseline: Baseline) -> None:
        row = (key, json.dumps(baseline.event_us), baseline.probe_us)
        with closing(self._open()) as db:
            db.execute("INSERT OR REPLACE INTO baselines VALUES (?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)


def baselines_path() -> Path:
    """Of this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "forge" / "baselines.db"
