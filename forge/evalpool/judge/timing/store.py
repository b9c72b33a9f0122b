# pyright: strict
"""Measured baselines, kept between judgements and runs below `$XDG_CACHE_HOME/forge/baselines/`.

A file for each card: nodes of a cluster often share a home directory, and SQLite's WAL works only
between processes of one machine. No judge would use a baseline of another card anyway.
A baseline is kept by everything that it depends on (problem, precision, TF32, GPU, driver, harness)
and with the time of a fixed piece of work of the judge then (the probe): where the same work takes
another time now, clocks or neighbours have changed, and the baseline is measured again.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forge.evalpool.judge.timing.samples import Time, spread

MAX_DRIFT = 0.05
"""Largest relative change of the probe's time with which a kept baseline is used."""
MAX_SPREAD = 0.1
"""Interquartile range over median. An idle H200: 0.0005 to 0.03."""
EVENT_RESOLUTION_US = 1.0
"""Absolute spread that says nothing."""
BUSY_S = 10.0
SCHEMA = """CREATE TABLE IF NOT EXISTS graph_baselines (
    key TEXT PRIMARY KEY,      -- hash of problem, precision, card, driver and harness
    gpu_us TEXT NOT NULL,    -- JSON: GPU time of each call
    probe_us REAL NOT NULL     -- the judge's own piece of work at that time
) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Times of the reference on this card."""

    gpu_us: tuple[float, ...]
    """GPU time of each call."""
    probe_us: float
    """Time of the judge's piece of work then."""

    def is_current(self, probe_us: float) -> bool:
        """True if the card is as fast as it was then."""
        return abs(probe_us / self.probe_us - 1) <= MAX_DRIFT

    def is_steady(self) -> bool:
        """True if its calls took about the same time: else somebody used the card beside it."""
        samples = np.asarray(self.gpu_us)
        return spread(samples) <= MAX_SPREAD * float(np.median(samples)) + EVENT_RESOLUTION_US

    def time(self) -> Time:
        """Its time, as a candidate's."""
        return Time.of(self.gpu_us)


class Baselines:
    """The file. Each call opens a connection: judges and runs share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(SCHEMA)

    def get(self, key: str) -> Baseline | None:
        """The baseline of a key; None if it was never measured. Raises sqlite3.Error."""
        with closing(self._open()) as db:
            query = "SELECT gpu_us, probe_us FROM graph_baselines WHERE key = ?"
            row = db.execute(query, (key,)).fetchone()
        if row is None:
            return None
        return Baseline(gpu_us=tuple(json.loads(row[0])), probe_us=row[1])

    def put(self, key: str, baseline: Baseline) -> None:
        """Keeps a baseline, in place of an older one. Raises sqlite3.Error."""
        row = (key, json.dumps(baseline.gpu_us), baseline.probe_us)
        with closing(self._open()) as db:
            db.execute("INSERT OR REPLACE INTO graph_baselines VALUES (?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)


def baselines_path(uuid: str) -> Path:
    """Path of this user's file for a card."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = re.sub(r"[^\w-]", "_", uuid)
    return Path(cache).expanduser() / "forge" / "baselines" / f"{name}.db"
