# pyright: strict
"""Samples of a run's processes: memory, descriptors, threads; and its files (`soak.py`).

Components are the supervisor, each child by its name (`serve-0`, `trainer`, `judge-0`), and all
descendants of a judge together (`judge-0 children`: zygote, oracle and candidates, which share
pages). Memory is PSS, which counts a shared page once over its users; RSS counts it for each, and
USS leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MB = 1e6
KEYS = {"Rss": "rss_mb", "Pss": "pss_mb"}
PRIVATE = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One component at one moment."""

    rss_mb: float
    pss_mb: float
    uss_mb: float
    num_fds: int
    num_threads: int
    num_processes: int


def sample_components(supervisor: psutil.Process) -> dict[str, Sample]:
    """Every component of a run that lives."""
    found = {"supervisor": sample_processes([supervisor])}
    for child in supervisor.children():
        with suppress(psutil.Error, OSError):
            name = Path(child.cmdline()[-1]).stem
            found[name] = sample_processes([child])
            if name.startswith("judge"):
                found[f"{name} children"] = sample_processes(child.children(recursive=True))
    return {name: each for name, each in found.items() if each.num_processes}


def sample_processes(processes: Iterable[psutil.Process]) -> Sample:
    """Sums over processes. One that has ended meanwhile counts nothing."""
    sums = dict.fromkeys(Sample.__dataclass_fields__, 0.0)
    for process in processes:
        with suppress(psutil.Error, OSError):
            for name, value in _memory_mb(process.pid):
                sums[name] += value
            sums["num_fds"] += process.num_fds()
            sums["num_threads"] += process.num_threads()
            sums["num_processes"] += 1
    memory = {name: round(sums.pop(name), 3) for name in ("rss_mb", "pss_mb", "uss_mb")}
    counts = {name: int(value) for name, value in sums.items()}
    return Sample(**memory, **counts)


def _memory_mb(pid: int) -> Iterator[tuple[str, float]]:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in KEYS:
            yield KEYS[key], int(rest.split()[0]) * 1024 / MB
        elif key in PRIVATE:
            yield "uss_mb", int(rest.split()[0]) * 1024 / MB


def sample_files(root: Path, *, temporary: Path) -> dict[str, float]:
    """Files in the run's directory but for its weights, in its own TMPDIR and in /dev/shm; sizes of
    its databases."""
    sizes = {name: (root / name).stat().st_size for name in ("run.db", "tokens.db")}
    weights = count_files(root / "weights")
    return {
        "run_directory": count_files(root) - weights,
        "weights": weights,
        "temporary": count_files(temporary),
        "dev_shm": count_files(Path("/dev/shm")),
        **{f"{name}_mb": round(size / MB, 1) for name, size in sizes.items()},
    }


def count_files(folder: Path) -> int:
    """Files below a folder. Directories that end meanwhile count nothing."""
    return sum(len(names) for _, _, names in os.walk(folder))
