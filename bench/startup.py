"""Measures the command line's start: medians of `forge --help` and of planning the quickstart.

    .venv/bin/python bench/startup.py [--json] [--runs 15]

Promises: `--help` in 0.25 s, `plan` in 0.6 s. Exit code 1 if a median is above
its limit. Each command runs once before it is timed, so that files are cached; the machine should
be idle otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORGE = Path(sys.executable).parent / "forge"
COMMANDS = {
    "forge --help": 0.25,
    "forge plan experiments/quickstart.toml": 0.6,
}
"""Commands and the maximum of their median, in seconds."""
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Wall seconds of one command over all runs."""

    command: str
    median_s: float
    low_s: float
    high_s: float
    limit_s: float

    @property
    def is_within(self) -> bool:
        return self.median_s <= self.limit_s


def time_command(command: str, *, limit_s: float, num_runs: int) -> Timing:
    """Wall seconds of a command. Raises CalledProcessError with its stderr if it fails."""
    argv = [str(FORGE), *command.split()[1:]]
    seconds = [_run_once(argv) for _ in range(num_runs + 1)][1:]
    return Timing(
        command=command,
        median_s=round(statistics.median(seconds), 4),
        low_s=round(min(seconds), 4),
        high_s=round(max(seconds), 4),
        limit_s=limit_s,
    )


def _run_once(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, capture_output=True, check=True, timeout=DEADLINE_S)
    return time.perf_counter() - began


def describe_machine() -> str:
    """One line for the header of a results table."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> int:
    """Prints a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description="Times forge's start.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--runs", type=int, default=15, help="timed runs a command")
    given = parser.parse_args()
    timings = [
        time_command(command, limit_s=limit_s, num_runs=given.runs)
        for command, limit_s in COMMANDS.items()
    ]
    if given.json:
        record = {"machine": describe_machine(), "runs": given.runs}
        print(json.dumps({**record, "timings": [asdict(timing) for timing in timings]}, indent=2))
    else:
        print(f"{describe_machine()}; median of {given.runs}\n")
        print("| command | median | lowest | highest | limit |\n|---|---|---|---|---|")
        for t in timings:
            cells = [f"{s:.3f} s" for s in (t.median_s, t.low_s, t.high_s, t.limit_s)]
            print(f"| `{t.command}` | {' | '.join(cells)} |")
    return 0 if all(timing.is_within for timing in timings) else 1


if __name__ == "__main__":
    sys.exit(main())
