"""Data of the monitor's Run screen: curves by step, recent verdicts, processes, rates. The run's
state is in `forge.views.run_state`.

Polled while a run is written: `Curves` keeps what it has read and queries the last steps only;
every other query is bounded by an index and a LIMIT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forge.store.reader import RunReader
from forge.views.run_state import RATE_WINDOW_S, load_idle, load_stages

RECENT_GROUPS = 128
"""Groups whose verdicts make up the failure mix: a few steps."""
RECENT_RATE_GROUPS = 512
IDLE_STEPS = 10
REREAD_STEPS = 8
"""Steps read again: groups that finish late add to a step's numbers."""

FROM_STEPS = {
    "reward": "reward",
    "pass rate": "pass_rate",
    "speed-up": "speedup",
    "length": "completion_tokens",
}
"""Curve to its column of v_steps; an open step is no point."""
FROM_METRICS = {
    "KL": "train/kl_behaviour/mean",
    "entropy": "train/entropy/mean",
    "loss": "train/loss/mean",
    "token accuracy": "train/token_accuracy/mean",
    "gradient norm": "train/grad_norm/value",
    "learning rate": "train/learning_rate/value",
    "trained tok/s": "train/tokens/per_s",
}
"""Curve to its metric."""
SHOWN = {
    "grpo": ("reward", "pass rate", "speed-up", "length", "KL", "entropy", "staleness"),
    "sft": ("loss", "token accuracy", "gradient norm", "learning rate", "trained tok/s"),
}
"""Kind of stage to its curves, in order."""


UNITS = {
    "pass rate": "%", "speed-up": "x", "length": "tokens", "KL": "nats", "entropy": "nats",
    "staleness": "steps",
}  # fmt: skip
"""Curve to its unit; a share is shown in percent."""
NOISE = 1e-5
"""Values below this share of a curve's largest one are shown as 0: rounding of a mean near zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity by training step; empty if nothing was recorded."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def unit(self) -> str:
        """Unit of the shown values; empty for none."""
        return UNITS.get(self.name, "")

    @property
    def shown(self) -> tuple[float, ...]:
        """The values in their unit, without noise around zero."""
        scale = 100.0 if self.unit == "%" else 1.0
        noise = NOISE * max((abs(value) for value in self.values), default=0.0)
        return tuple(0.0 if abs(value) <= noise else scale * value for value in self.values)

    def thin(self, num: int) -> Curve:
        """At most `num` points, each the mean of its neighbours."""
        if len(self.steps) <= num:
            return self
        ends = [i * len(self.steps) // num for i in range(num + 1)]
        pairs = list(pairwise(ends))
        return Curve(
            name=self.name,
            steps=tuple(self.steps[high - 1] for _, high in pairs),
            values=tuple(sum(self.values[low:high]) / (high - low) for low, high in pairs),
        )


_LOSS = """
SELECT step, value FROM metrics WHERE key = 'train/loss/mean' AND stage = :stage
    AND value IS NOT NULL ORDER BY step, attempt
"""


class Curves:
    """Curves of the training stage that runs, or ran last. Not safe for concurrent use."""

    def __init__(self) -> None:
        self.stage: int | None = None
        self.kind: str | None = None
        self._points: dict[str, dict[int, float]] = {}
        self._last = 0

    def read(self, reader: RunReader) -> list[Curve]:
        """The current curves; after the first call only the last steps are queried."""
        stage, kind = _training_stage(reader)
        if stage != self.stage:
            self.stage, self.kind, self._points, self._last = stage, kind, {}, 0
        if stage is None or kind is None:
            return []
        since = max(self._last - REREAD_STEPS, 0)
        for name, step, value in _points(reader, stage=stage, kind=kind, since=since):
            if value is None:
                self._points.get(name, {}).pop(step, None)
            else:
                self._points.setdefault(name, {})[step] = value
                self._last = max(self._last, step)
        found = {name: sorted(self._points.get(name, {}).items()) for name in SHOWN[kind]}
        return [
            Curve(name=name, steps=tuple(x for x, _ in of), values=tuple(y for _, y in of))
            for name, of in found.items()
        ]

    def sft_loss(self, reader: RunReader) -> Curve | None:
        """The loss of the last SFT stage before the current stage; None without one."""
        kinds = [table.get("kind") for table in load_stages(reader)]
        before = [i for i, kind in enumerate(kinds[: self.stage or 0]) if kind == "sft"]
        if not before:
            return None
        points = dict(reader.query(_LOSS, {"stage": before[-1]}).rows)
        if not points:
            return None
        return Curve(name="SFT loss", steps=tuple(points), values=tuple(points.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Recent activity of a run, except curves."""

    mix: list[dict[str, Any]]
    """status, num_turns and share of the verdicts of the last RECENT_GROUPS groups."""
    rollouts_per_s: float | None
    """Finished in the last RATE_WINDOW_S; None if no groups were."""
    processes: list[dict[str, Any]]
    idle: dict[str, float]
    """Role to its idle share over the last IDLE_STEPS steps."""


_MIX = """
SELECT status, num_turns, 1.0 * num_turns / sum(num_turns) OVER () AS share FROM (
    SELECT status, count(*) AS num_turns
    FROM (SELECT group_id FROM groups ORDER BY group_id DESC LIMIT ?)
    CROSS JOIN verdicts USING (group_id) GROUP BY +status)
ORDER BY status = 'correct' DESC, num_turns DESC, status
"""
"""Verdicts of the last groups, correct first, then by number. CROSS JOIN fixes the join order:
otherwise SQLite reads all verdicts along their index."""
_RATE = """
SELECT sum(num_rollouts) FROM
    (SELECT num_rollouts, recorded_at FROM groups ORDER BY group_id DESC LIMIT ?)
WHERE recorded_at > ? AND num_rollouts > 0
"""


def load_activity(reader: RunReader, *, now: float) -> Activity:
    """Loads everything, in about 10 ms. `now` is Unix seconds."""
    num = reader.value(_RATE, (RECENT_RATE_GROUPS, now - RATE_WINDOW_S))
    return Activity(
        mix=reader.rows(_MIX, (RECENT_GROUPS,)),
        rollouts_per_s=num / RATE_WINDOW_S if num else None,
        processes=load_processes(reader),
        idle=load_idle(reader, stage=_training_stage(reader)[0], num_steps=IDLE_STEPS),
    )


def load_processes(reader: RunReader) -> list[dict[str, Any]]:
    """Child processes of the last attempt, one row per name: the latest process, and how often one
    died before it. A null reason means alive, or killed with its supervisor."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in reader.rows(
        "SELECT name, pid, devices, log_path, started_at, ended_at, reason FROM processes "
        "WHERE attempt = (SELECT max(attempt) FROM processes) ORDER BY started_at"
    ):
        found[row["name"]].append(row)
    return [
        # no deaths: a trainer that finished its stage is followed by another one
        {**last, "num_restarts": sum(not str(r["reason"]).startswith("exit 0") for r in before)}
        for *before, last in found.values()
    ]


def _training_stage(reader: RunReader) -> tuple[int | None, str | None]:
    """Index and kind of the last stage that trained."""
    stage = reader.value("SELECT max(stage) FROM metrics")
    if stage is None:
        return None, None
    kinds: Sequence[str | None] = [table.get("kind") for table in load_stages(reader)]
    kind = kinds[stage] if stage < len(kinds) else None
    return stage, kind if kind in SHOWN else "grpo"


def _points(
    reader: RunReader, *, stage: int, kind: str, since: int
) -> list[tuple[str, int, float | None]]:
    """(curve, step, value) of all steps from `since`."""
    keys = {key: name for name, key in FROM_METRICS.items() if name in SHOWN[kind]}
    marks = ", ".join("?" * len(keys))
    points = [
        (keys[row[0]], row[1], row[2])
        for row in reader.query(
            "SELECT key, step, value FROM metrics WHERE stage = ? AND step >= ? "
            f"AND key IN ({marks}) ORDER BY attempt",
            (stage, since, *keys),
        ).rows
    ]
    if kind != "grpo":
        return points
    columns = ", ".join(f"CASE WHEN NOT is_open THEN {name} END" for name in FROM_STEPS.values())
    for row in reader.query(
        f"SELECT step, {columns} FROM v_steps WHERE stage = ? AND step >= ?", (stage, since)
    ).rows:
        points += [(name, row[0], value) for name, value in zip(FROM_STEPS, row[1:], strict=True)]
    staleness = reader.query(
        "SELECT step, sum(share * staleness) FROM v_staleness "
        "WHERE stage = ? AND step >= ? GROUP BY step",
        (stage, since),
    ).rows
    return points + [("staleness", step, value) for step, value in staleness]
