# pyright: standard
"""The child process of one sink: copies the new numbers of the run's store to tensorboard, trackio
or wandb until its stop file exists, then writes the rest and ends. (A signal could arrive before
its handler is installed.)

An error of the tracker's package ends it with exit 1; the last line of its log is the message.
Each group of points has its own steps, so trackio and wandb get `<group>/step` beside the numbers;
wandb uses it as the x axis.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.process.lease import hold_lease
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.views.run_state import EVALUATIONS, load_experiment, load_stages

LOOK_EVERY_S = 2.0
STOP_EVERY_S = 0.1
"""Maximum delay until the stop file is noticed."""
LATE_STEPS = 10
"""Numbers of a step may be written after those of later steps: rollouts are up to max_staleness + 1
steps ahead of the trainer, and max_staleness is at most 8."""
METRICS = """
SELECT stage, step, key, value, at FROM metrics
WHERE (stage, step) >= (:stage, :step) AND attempt = :attempt AND value IS NOT NULL
ORDER BY stage, step, key
"""
RATES = ("pass_at_1", "ci_low", "ci_high", "pass_at_1_greedy", "pass_at_1_multi", "compile_rate")


def main() -> None:
    config = hold_lease()
    try:
        follow(config)
    except Exception as error:  # boundary: any error of a tracker fails this sink only
        traceback.print_exc()
        message = " ".join(str(error).split())
        sys.stderr.write(f"{type(error).__name__}: {message}\n")
        sys.exit(1)


def follow(config: dict[str, Any]) -> None:
    """Copies new points of the store until the stop file exists; then once more."""
    paths = RunPaths(Path(config["run"]))
    with RunReader(paths) as reader:
        tracker = open_tracker(
            config["sink"],
            run=paths.name,
            folder=paths.root / "sinks" / config["sink"],
            config=load_experiment(reader, is_public=True),
            settings=config,
        )
        follower = Follower(reader, attempt=config["attempt"], since=config["since"])
        seen = None
        is_last = False
        while not is_last:
            is_last = _wait_or_stop(Path(config["stop_file"]))
            if (version := reader.data_version()) == seen and not is_last:
                continue
            seen = version
            for point in follower.fresh():
                tracker.log(point)
            tracker.flush()
        tracker.close()


def _wait_or_stop(stop_file: Path) -> bool:
    """Waits until the next look is due. Returns True if the stop file exists."""
    due = time.monotonic() + LOOK_EVERY_S
    while not (is_end := stop_file.exists()) and time.monotonic() < due:
        time.sleep(STOP_EVERY_S)
    return is_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    group: str
    """Prefix of their names, and the owner of the step: `grpo-3`, or `eval`."""
    step: int
    """Step of the stage; for `eval` the policy version."""
    at: float
    """Unix seconds, UTC."""
    values: dict[str, float]


class Follower:
    """Reads the numbers that one attempt records, each once."""

    def __init__(self, reader: RunReader, *, attempt: int, since: float) -> None:
        """`since`: start of the attempt in Unix seconds; earlier evaluations are skipped."""
        self._reader, self._attempt, self._started_at = reader, attempt, since
        self._evaluated = set[tuple[str, int, int]]()
        self._stages = load_stages(reader)
        self._since = (0, 0)
        self._sent: set[tuple[int, int, str]] = set()

    def fresh(self) -> list[Point]:
        """New points since the last call, in order."""
        return [*self._metrics(), *self._evaluations()]

    def _metrics(self) -> Iterator[Point]:
        stage, step = self._since
        rows = self._reader.rows(
            METRICS, {"stage": stage, "step": step - LATE_STEPS, "attempt": self._attempt}
        )
        points: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in rows:
            place = row["stage"], row["step"]
            if (*place, row["key"]) not in self._sent:
                self._sent.add((*place, row["key"]))
                points.setdefault(place, []).append(row)
            self._since = max(self._since, place)
        stage, step = self._since
        self._sent = {each for each in self._sent if each[:2] >= (stage, step - LATE_STEPS)}
        for (stage, step), found in points.items():
            yield Point(
                group=self._name(stage), step=step, at=max(row["at"] for row in found),
                values={row["key"]: row["value"] for row in found},
            )  # fmt: skip

    def _evaluations(self) -> Iterator[Point]:
        since = f"{EVALUATIONS} WHERE at >= ? ORDER BY at, stage"
        for row in self._reader.rows(since, (self._started_at,)):
            key = row["stage"], row["step"], row["policy_version"]
            if key in self._evaluated:
                continue
            self._evaluated.add(key)
            yield Point(
                group="eval", step=row["policy_version"], at=row["at"],
                values={name: row[name] for name in RATES if row[name] is not None}
                | {f"{name}/pass_at_1": part["pass_at_1"]
                   for name, part in json.loads(row["by_source"] or "{}").items()},
            )  # fmt: skip

    def _name(self, stage: int) -> str:
        known = self._stages[stage] if stage < len(self._stages) else {}
        return f"{known.get('kind', 'stage')}-{stage}"


def open_tracker(
    name: str, *, run: str, folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> TensorBoard | Service:
    """Opens the tracker of this name. Errors of its package are passed on.

    Args:
        run: the run's name.
        folder: folder in the run's directory for the tracker's files.
        config: the experiment, shown beside the numbers.
        settings: `project` and `wandb_mode` of `[sinks]`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if name == "tensorboard":
        return TensorBoard(folder)
    about = {"project": settings["project"], "name": run, "config": dict(config), "resume": "allow"}
    if name == "trackio":
        import trackio  # pyright: ignore[reportMissingImports]

        return Service(trackio.init(**about, embed=False))
    import wandb  # pyright: ignore[reportMissingImports]

    own = wandb.Settings(console="off", disable_git=True)
    mode = settings["wandb_mode"]
    return Service(wandb.init(**about, id=run, dir=str(folder), mode=mode, settings=own))


class TensorBoard:
    """Event files; `tensorboard --logdir runs` compares all runs."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder))
        self.flush, self.close = self._writer.flush, self._writer.close

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            tag = f"{point.group}/{name}"
            self._writer.add_scalar(tag, value, point.step, wall_time=point.at)


class Service:
    """A run of trackio (a database in TRACKIO_DIR or its default folder, which `trackio show`
    reads) or wandb (of the same name and id, which later attempts continue); both send in the
    background."""

    def __init__(self, run: Any) -> None:
        self._run, self._groups = run, set[str]()
        self.close = run.finish

    def log(self, point: Point) -> None:
        """Sends the values of a point, in wandb on the axis of its group."""
        if point.group not in self._groups and hasattr(self._run, "define_metric"):
            self._groups.add(point.group)
            self._run.define_metric(f"{point.group}/step")
            self._run.define_metric(f"{point.group}/*", step_metric=f"{point.group}/step")
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        self._run.log({f"{point.group}/step": point.step, **values})

    def flush(self) -> None:
        """Nothing: it sends in the background."""


if __name__ == "__main__":
    main()
