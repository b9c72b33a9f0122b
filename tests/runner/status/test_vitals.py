"""Memory of process trees and cards, and last lines of logs."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge.runner.status import LAST_BYTES, LastLogLines, VitalsSampler

HOLDS = "import subprocess, sys; b = bytearray({size}); print(1, flush=True); {then}; input()"
"""A process that holds so many bytes, and runs more code."""


def test_a_process_counts_with_its_descendants_and_the_supervisor_without() -> None:
    size = 40 << 20
    inner = HOLDS.format(size=size, then="None")
    outer = HOLDS.format(
        size=size,
        then=f"p = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE);"
        " p.stdout.readline(); print(2, flush=True)",
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() + child.stdout.readline() == b"1\n2\n"
        found = VitalsSampler().sample(
            [child.pid, 1 << 30], alone=[os.getpid()], uuids=["GPU-none"]
        )
        child.communicate(b"\n\n")
    assert len(found.trees[child.pid]) == 2
    assert 2 * size < found.resident[child.pid] < 6 * size
    assert found.trees[os.getpid()] == {os.getpid()}
    assert found.resident[os.getpid()] > 1 << 20
    assert 1 << 30 not in found.resident, "there is no such process"
    assert found.cards == {}


def test_the_cores_of_a_process_are_its_cpu_time_between_two_samples() -> None:
    sampler = VitalsSampler()
    assert sampler.sample([], alone=[os.getpid()], uuids=[]).cpu_cores == {}
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    cores = sampler.sample([], alone=[os.getpid()], uuids=[]).cpu_cores[os.getpid()]
    assert 0.0 < cores < 8.0


class Nvml:
    """Two cards: one names a process, one (as in a container) does not report its use."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-9":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=72, total=80)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [
            SimpleNamespace(pid=7, usedGpuMemory=64),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle == "GPU-1":
            raise self.NVMLError
        return SimpleNamespace(gpu=55)


def test_a_card_has_the_figures_that_its_driver_reports() -> None:
    sampler = VitalsSampler()
    sampler._nvml = Nvml()
    cards = sampler.sample([], alone=[], uuids=["GPU-0", "GPU-1", "GPU-9"]).cards
    assert list(cards) == ["GPU-0", "GPU-1"]
    assert (cards["GPU-0"].used_bytes, cards["GPU-0"].total_bytes) == (72, 80)
    assert (cards["GPU-0"].use, cards["GPU-1"].use) == (0.55, None)
    assert cards["GPU-0"].by_pid == {7: 64}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one\ntwo\n", "two"),
        ("one\ntwo", "two"),
        ("one\n\n  \n", "one"),
        ("10%\r50%\r100%\n", "100%"),
        ("\x1b[31mred\x1b[0m [bold]\n", "␛[31mred␛[0m [bold]"),
        ("a" * 10_000 + "end", "a" * (LAST_BYTES - 3) + "end"),
        ("", ""),
    ],
)
def test_the_last_line_of_a_log_is_printable(tmp_path: Path, written: str, shown: str) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(written.encode())
    assert LastLogLines().read([log, tmp_path / "none.log"]) == {
        log: shown,
        tmp_path / "none.log": "",
    }
