"""The child process of one sink: follows the store of its run until its stop file is there, then
writes the rest and ends. (A signal could come before there is a handler for it.)

What its package raises ends it with exit 1 and one line, the last of its log.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import tomli

from forge.process.lease import hold_lease
from forge.runner.outlets.sinks.adapters import open_sink
from forge.runner.outlets.sinks.following import Follower
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.views.text.secrets import hide_secrets

LOOK_EVERY_S = 2.0
STOP_EVERY_S = 0.1
"""How soon the end is seen."""


def main() -> None:
    """Entry point of the child."""
    config = hold_lease()
    try:
        follow(config)
    except Exception as error:  # boundary: whatever a tracker raises is its own failure
        traceback.print_exc()
        words = " ".join(str(error).split())
        sys.stderr.write(f"{type(error).__name__}: {words}\n")
        sys.exit(1)


def follow(config: dict[str, Any]) -> None:
    """Passes on what the store gets, until told to stop; then once more."""
    paths = RunPaths(Path(config["run"]))
    with RunReader(paths) as reader:
        sink = open_sink(
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
            is_last = _is_told_to_stop(Path(config["stop_file"]))
            if (version := reader.data_version()) == seen and not is_last:
                continue
            seen = version
            for point in follower.fresh():
                sink.log(point)
            sink.flush()
        sink.close()


def _is_told_to_stop(stop_file: Path) -> bool:
    """Waits until the next look is due, or the end; whether it is the end."""
    due = time.monotonic() + LOOK_EVERY_S
    while not (is_end := stop_file.exists()) and time.monotonic() < due:
        time.sleep(STOP_EVERY_S)
    return is_end


def _experiment(reader: RunReader) -> dict[str, Any]:
    """As resolved, less its secrets: a sink may show it to others."""
    text = reader.value("SELECT experiment FROM runs LIMIT 1") or ""
    try:
        return tomli.loads(hide_secrets(text))
    except tomli.TOMLDecodeError:  # a run made by hand
        return {}


if __name__ == "__main__":
    main()
