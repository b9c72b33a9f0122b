"""The child process that writes a run's report. Its last line is the path or the error."""

from __future__ import annotations

import sys
from pathlib import Path

from forge.process.lease import hold_lease


def main() -> None:
    """Entry point of the child."""
    config = hold_lease()
    from forge.errors import ForgeError
    from forge.store.layout import RunPaths
    from forge.views.report import write_report

    try:
        line, code = str(write_report(RunPaths(Path(config["root"])))), 0
    except ForgeError as error:
        line, code = str(error), 1
    sys.stderr.write(f"{line}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
