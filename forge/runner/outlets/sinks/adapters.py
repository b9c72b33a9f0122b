# pyright: standard
"""Adapters to tensorboard, trackio and wandb. Imported only by the children of sinks.

Each group of points has its own steps, so trackio and wandb get `<group>/step` beside the numbers;
wandb uses it as the x axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.runner.outlets.sinks.following import Point


class Tracker(Protocol):
    """A destination of points."""

    def log(self, point: Point) -> None:
        """Adds a point."""
        ...

    def flush(self) -> None:
        """Sends the points so far."""
        ...

    def close(self) -> None:
        """Sends the rest and ends."""
        ...


def open_tracker(
    name: str, *, run: str, folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> Tracker:
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
    if name == "trackio":
        return Trackio(settings["project"], run=run, config=config)
    return WandB(
        settings["project"], run=run, folder=folder, config=config, mode=settings["wandb_mode"]
    )


class TensorBoard:
    """Event files; `tensorboard --logdir runs` compares all runs."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder))

    def log(self, point: Point) -> None:
        """Writes the scalars of a point."""
        for name, value in point.values.items():
            tag = f"{point.group}/{name}"
            self._writer.add_scalar(tag, value, point.step, wall_time=point.at)

    def flush(self) -> None:
        """Writes buffered events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class _Service:
    """A package with a run object that sends in the background."""

    _run: Any

    def log(self, point: Point) -> None:
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        self._run.log({f"{point.group}/step": point.step, **values})

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._run.finish()


class Trackio(_Service):
    """A database in TRACKIO_DIR or trackio's default folder, which `trackio show` reads."""

    def __init__(self, project: str, *, run: str, config: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio.init(
            project=project, name=run, config=dict(config), resume="allow", embed=False
        )


class WandB(_Service):
    """A wandb run of the same name, which later attempts continue."""

    def __init__(
        self, project: str, *, run: str, folder: Path, config: Mapping[str, Any], mode: Any
    ) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._groups: set[str] = set()
        self._run = wandb.init(
            project=project, name=run, id=run, resume="allow", dir=str(folder), mode=mode,
            config=dict(config), settings=wandb.Settings(console="off", disable_git=True),
        )  # fmt: skip

    def log(self, point: Point) -> None:
        """Sends the values of a point, on the axis of its group."""
        if point.group not in self._groups:
            self._groups.add(point.group)
            self._run.define_metric(f"{point.group}/step")
            self._run.define_metric(f"{point.group}/*", step_metric=f"{point.group}/step")
        super().log(point)
