"""The child process of one sink: follows the run's store until its stop file exists, then writes
the rest and ends. (A signal could arrive before its handler is installed.)

An error of the tracker's package ends it with exit 1; the last line of its log is the message.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tomli

from forge.process.lease import hold_lease
from forge.runner.outlets.sinks.adapters import open_tracker
from forge.runner.outlets.sinks.following import Follower
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.views.text.secrets import hide_secrets

LOOK_EVERY_S = 2.0
STOP_EVERY_S = 0.1
"""Maximum delay until the stop file is noticed."""


def main() -> None:
    """Entry point of the child."""
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
            config=_experiment(reader),
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


def _experiment(reader: RunReader) -> dict[str, Any]:
    """The resolved experiment without its secrets, since a tracker may publish it."""
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        return tomli.loads(hide_secrets(text))
    except tomli.TOMLDecodeError:  # a run made by hand
        return {}


if __name__ == "__main__":
    main()
