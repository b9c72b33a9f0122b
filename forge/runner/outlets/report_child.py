"""The child process that writes a run's report. Its last line is where it is, or what was wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from forge.process.lease import hold_lease


def main() -> None:
    config = hold_lease()
    from forge.errors import ForgeError
    from forge.store.layout import RunPaths
    from forge.views.report import write_report

    try:
        words, code = str(write_report(RunPaths(Path(config["root"])))), 0
    except ForgeError as error:
        words, code = str(error), 1
    sys.stderr.write(f"{words}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
