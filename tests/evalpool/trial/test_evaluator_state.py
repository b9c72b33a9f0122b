"""Nothing of a candidate stays in the process of an evaluator."""

import functools
import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.execute import child_cpu
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Program
from forge.evalpool.judge.ttir.plan import plan_of
from tests.evalpool.execute.made_programs import REQUEST, copy_kernel, launch, program

X = np.arange(256, dtype=np.float32)


def failing() -> Iterator[Program]:
    """Programs that end in each of the executor's ways."""
    yield program(launch(256))
    yield program(launch(300, size=300))
    yield program(launch(200))
    yield program(launch(200, target=2), launch(256, source=2), num_temporaries=1)


def test_no_state_of_a_process_changes_with_the_candidates_that_it_serves() -> None:
    ours, theirs = socket.socketpair()
    child = threading.Thread(target=serve, args=(theirs,))
    child.start()
    with ours:
        run(ours, next(failing()))
        gc.collect()  # files that other tests left
        before, num_files = state(), count_files()
        for one in itertools.chain.from_iterable(failing() for _ in range(4)):
            run(ours, one)
        assert state() == before
        assert count_files() < num_files + 4  # of each way; other threads may open one
    child.join(10)
    assert not child.is_alive()


def serve(sock: socket.socket) -> None:
    with sock, pytest.raises(frames.PeerGone):
        child_cpu.main(sock)


def run(sock: socket.socket, one: Program) -> None:
    """A candidate from its first call to its release."""
    data = wire.dumps(one)
    with shared_memory(2048) as (fd, memory), shared_memory(len(data)) as (text, content):
        memory[:1024] = X.tobytes()
        content[:] = data
        frames.send(sock, Kind.CANDIDATE, REQUEST, fds=(fd, text))
        receive(sock)
        frames.send(sock, Kind.RELEASE, {})
        assert receive(sock).kind is Kind.DONE


def receive(sock: socket.socket) -> frames.Frame:
    return frames.receive(sock, deadline=time.monotonic() + 10, expected=(Kind.DONE, Kind.FAILED))


ROOMS = tuple(
    f"forge.evalpool.judge.{name}" for name in ("ttir", "execute", "program", "wide", "frames")
)


def count_files() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def state() -> dict[str, Any]:
    """State of this process that an evaluator's code could change."""
    found: dict[str, Any] = {
        "numpy": (np.geterr(), np.get_printoptions(), str(np.random.get_state())),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed()),
        "process": (os.getcwd(), dict(os.environ), sys.getrecursionlimit(), gc.isenabled()),
        "warnings": len(warnings.filters),
        "modules": len(sys.modules),
    }
    for name, module in list(sys.modules.items()):
        if name.startswith(ROOMS):
            found[name] = {key: shown(value) for key, value in vars(module).items()}
    return found


def shown(value: Any) -> Any:
    """A value's identity, with its content where it can change."""
    if isinstance(value, (dict, list, set)):
        return id(value), len(value), repr(value)[:10_000] if len(value) < 1000 else ""
    if isinstance(value, types.FunctionType):
        return id(value), value.__defaults__, repr(value.__dict__)
    if isinstance(value, type):
        return id(value), {key: id(one) for key, one in vars(value).items()}
    if isinstance(value, functools._lru_cache_wrapper):
        return id(value), value.cache_info().maxsize
    return id(value)


CACHES = """
import functools, sys
from forge.evalpool.judge.execute import child_cpu
child_cpu.warm_up()
found = {
    value.__name__
    for name, module in list(sys.modules.items())
    if name.startswith(ROOMS)
    for value in vars(module).values()
    if isinstance(value, functools._lru_cache_wrapper)
}
print(*sorted(found))
"""


def test_every_cache_of_an_evaluator_is_known_to_depend_on_its_arguments_alone() -> None:
    """In a process of its own: this one may have imported more than an evaluator does."""
    code = f"ROOMS = {ROOMS[:4]!r}\n{CACHES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    of_operations = {"operation", "takes_device", "schemas"}
    assert found == {"plan_of", *of_operations, "float8_values", "_wide_text", "_hints"}


def test_plans_hold_no_array_that_can_be_written_to() -> None:
    plan = plan_of(copy_kernel().ttir)
    run_in_place(plan)
    found = [value for one in plan.functions.values() for value in one.template]
    arrays = [one for one in found if isinstance(one, np.ndarray)]
    assert arrays
    assert not [one for one in arrays if one.flags.writeable]


def run_in_place(plan: Any) -> None:
    """Runs a plan, so that what it remembers of its constants is there."""
    from forge.evalpool.judge.execute.cpu import CpuExecutor

    one = CpuExecutor(program(launch(256)), [X.copy().view(np.uint8)], {})
    one.init()
    one.forward()
