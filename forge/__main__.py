"""Entry point of `forge` and `python -m forge`. Ctrl-C is one line, also during the imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs a command and exits with its code."""
    try:
        from forge.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("forge: stopped by Ctrl-C\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
