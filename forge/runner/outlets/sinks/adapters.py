"""One class a sink: how points get into tensorboard, trackio, wandb. Used in their children only.

Each group of points has its own steps, so trackio and wandb get `<group>/step` beside the numbers,
and wandb is told to draw by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.runner.outlets.sinks.following import Point


class Sink(Protocol):
    """Where points go."""

    def log(self, point: Point) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def open_sink(
    name: str, *, run: str, folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> Sink:
    """Opens the sink of this name. What its package raises is passed on.

    Args:
        run: the run's name.
        folder: in the run's directory, for this sink's files.
        config: the experiment, to be shown beside the numbers.
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
    """`tensorboard --logdir runs` shows all runs beside each other."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder))

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            tag = f"{point.group}/{name}"
            self._writer.add_scalar(tag, value, point.step, wall_time=point.at)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """Where TRACKIO_DIR says, else in trackio's own place; `trackio show` looks there."""

    def __init__(self, project: str, *, run: str, config: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio.init(
            project=project, name=run, config=dict(config), resume="allow", embed=False
        )

    def log(self, point: Point) -> None:
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        self._run.log({f"{point.group}/step": point.step, **values})

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self._run.finish()


class WandB:
    """A run of the same name, continued by later attempts."""

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
        axis = f"{point.group}/step"
        if point.group not in self._groups:
            self._groups.add(point.group)
            self._run.define_metric(axis)
            self._run.define_metric(f"{point.group}/*", step_metric=axis)
        values = {f"{point.group}/{name}": value for name, value in point.values.items()}
        self._run.log({axis: point.step, **values})

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self._run.finish()
