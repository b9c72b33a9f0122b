"""Limits of a shell are named before a run starts, and beside the words of a child that met one."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from forge.process import machine
from forge.process.machine import limit_behind


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        ("-n 40", 'forge: "ulimit -n" allows this process 40 open files; a run needs 512: '),
        ("-v 3000000", 'forge: "ulimit -v" allows a process 2.9 GiB of address space; a run nee'),
    ],
)
@pytest.mark.parametrize("command", ["run", "judge"])
def test_a_limit_that_no_run_can_live_with_is_one_line_and_exit_3(
    limit: str, line: str, command: str
) -> None:
    program = f'ulimit {limit}; exec "$@"'
    argv = [sys.executable, "-m", "forge", command, "absent.toml", "absent.py"][
        : 5 + (command == "judge")
    ]
    done = subprocess.run(
        ["sh", "-c", program, "sh", *argv], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = (
        "import resource as r; from forge.process.machine import require_limits;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (100, hard));"
        "require_limits(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) >= machine.MIN_OPEN_FILES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("OSError: [Errno 24] Too many open files: 'x'", '"ulimit -n" allows 700 open files.'),
        ("RuntimeError: can't start new thread", '"ulimit -v" allows each process 9.0 GiB'),
        ("libtorch.so: failed to map segment from shared object", '"ulimit -v" allows'),
        ("ValueError: x", ""),
    ],
)
def test_the_limit_behind_a_failure_is_named(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {resource.RLIMIT_AS: 9 << 30, resource.RLIMIT_NOFILE: 700}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (found[kind], found[kind]))
    assert said in limit_behind(words)
    assert bool(limit_behind(words)) is bool(said)


def test_without_a_limit_nothing_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (endless, endless))
    assert limit_behind("MemoryError") == ""


def test_the_threads_of_a_supervisor_allocate_from_one_heap() -> None:
    code = (
        "import ctypes, threading; from forge.process.machine import use_one_heap;"
        "use_one_heap();"
        "threads = [threading.Thread(target=lambda: bytes(9999)) for _ in range(3)];"
        "[(each.start(), each.join()) for each in threads];"
        "ctypes.CDLL(None).malloc_stats()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("Arena ") == 1


TABLES = """
import ctypes
from pathlib import Path
from forge.process.machine import use_one_heap

use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def allocated(num_bytes):
    block = libc.malloc(num_bytes)
    libc.memset(block, 1, num_bytes)
    return block

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

before = resident_mb()
for _ in range(2):  # the first raises glibc's own limit
    table = allocated(8 << 20)
    small = allocated(999)  # stays, at the end of the heap
    libc.free(table)
print(resident_mb() - before)
"""


def test_a_large_block_goes_back_to_the_system_when_it_is_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TABLES], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 4


def test_the_collector_passes_seldom_and_still_frees_cycles() -> None:
    code = """
import gc, weakref
from forge.process.machine import COLLECT_AFTER, collect_less_often
class Node: pass
collect_less_often()
passes = []
gc.callbacks.append(lambda phase, info: passes.append(info["generation"]))
kept = [[] for _ in range(COLLECT_AFTER // 2)]
assert not passes
node = Node()
node.itself, seen = node, weakref.ref(node)
del node
kept += [[] for _ in range(2 * COLLECT_AFTER)]
assert passes and seen() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
