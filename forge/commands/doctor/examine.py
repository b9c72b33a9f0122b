"""Reads the facts of this machine, runs the probes in parallel, and lists the findings.

    facts of the host (milliseconds) ──▶ which GPUs and engines to try
      ├─ imports: here, of each engine in serve.python ─────┐
      ├─ sandbox                                            ├──▶ findings, by pure functions
      ├─ a kernel on each free GPU, or on the CPU           │
      └─ copies between GPUs, a sum by NCCL ────────────────┘

Each probe is a child process with a deadline, so this takes as long as the slowest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio

from forge.commands.doctor.clock import Stopwatch, check_clock
from forge.commands.doctor.container import check_container, check_sandbox, read_container
from forge.commands.doctor.drivers import DriverFacts, check_drivers, read_nodes
from forge.commands.doctor.engines import EngineFacts, check_engines
from forge.commands.doctor.finding import Finding, error
from forge.commands.doctor.gpus import GpuFacts, check_gpus
from forge.commands.doctor.limits import check_limits, read_limits
from forge.commands.doctor.software import check_packages, check_system
from forge.commands.doctor.storage import check_file_system, check_room
from forge.commands.doctor.trials import Trials, try_all
from forge.config.schema import ServeTable
from forge.errors import ForgeError, MachineError
from forge.evalpool.judge.sandbox.enter import read_sysctls
from forge.process.devices import nvidia_driver
from forge.process.gpu_locks import holders
from forge.process.sockets import open_socket_dir
from forge.runner.plan.machine import Machine, this_machine
from forge.serve.engines import read_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator


def examine(store_dir: Path, *, serve: ServeTable | None = None) -> list[Finding]:
    """Runs all checks.

    Args:
        store_dir: parent of run directories; its disk is checked.
        serve: `[serve]` of an experiment, to check the engines of its interpreter; absent means
            this interpreter.
    """
    watch, engines = Stopwatch(), _read_engines(serve)
    machine = this_machine(store_dir, serve=None if isinstance(engines, MachineError) else serve)
    gpus = GpuFacts(
        gpus=machine.gpus,
        hidden=machine.hidden_gpus,
        holders=holders(machine.gpus),
        users=machine.gpu_users,
    )
    if isinstance(engines, EngineFacts):
        engines = replace(engines, gpus=machine.gpus)
    with ExitStack() as opened:
        folder, sockets = _open_folder(opened)
        served = engines if isinstance(engines, EngineFacts) else None
        trials, gpus = anyio.run(try_all, folder, gpus, served)
    return [
        *check_system(has_gpus=bool(machine.gpus)),
        *check_packages(trials.here),
        *_check_engines(engines, trials),
        *_check_host(machine, trials, gpus, store_dir),
        sockets,
        *check_clock(watch.read(store_dir)),
    ]


def _read_engines(serve: ServeTable | None) -> EngineFacts | MachineError:
    """The interpreter that serves, or the error if it does not run."""
    try:
        return EngineFacts(python=read_interpreter(serve), table=serve or ServeTable())
    except MachineError as failure:
        return failure


def _open_folder(opened: ExitStack) -> tuple[Path, Finding]:
    """A private directory for the probes: that of a run's sockets, which is removed after a kill
    too, or another one if sockets have no place."""
    try:
        folder = opened.enter_context(open_socket_dir())
        return folder, Finding(name="sockets", found=str(folder.parent))
    except (ForgeError, OSError) as failure:
        fix = "TMPDIR=/tmp, or another short writable path"
        sockets = error("sockets", str(failure), fix=fix)
    try:
        return Path(opened.enter_context(TemporaryDirectory())), sockets
    except OSError as failure:
        raise MachineError(f"no temporary directory: {failure}; set TMPDIR") from failure


def _check_engines(engines: EngineFacts | MachineError, trials: Trials) -> Iterator[Finding]:
    if isinstance(engines, MachineError):
        fix = "serve.python must name a Python that runs"
        yield error("engines", str(engines), fix=fix)
        return
    imported = {**trials.here.packages, **trials.serving.packages}
    unmet = [line for line in trials.serving.unmet if line not in trials.here.unmet]
    yield from check_engines(replace(engines, imported=imported, unmet=unmet))


def _check_host(
    machine: Machine, trials: Trials, gpus: GpuFacts, store_dir: Path
) -> Iterator[Finding]:
    """GPUs with their drivers, container, sandbox, limits, memory and disk."""
    container, has_gpus = read_container(), bool(machine.gpus)
    driver, nvml_fault = nvidia_driver()
    builds = {"torch": trials.here.torch, "torch of serve.python": trials.serving.torch}
    yield from check_drivers(
        DriverFacts(
            gpus=machine.gpus,
            **read_nodes(),
            nvidia_driver=driver,
            nvml_fault=nvml_fault,
            builds={name: build for name, build in builds.items() if build is not None},
            has_run=gpus.has_run,
            is_container=bool(container.kind),
        )
    )
    yield from check_gpus(gpus)
    yield from check_container(container)
    yield from check_sandbox(trials.sandbox, container, has_gpus=has_gpus, sysctls=read_sysctls())
    limits = read_limits(
        cores=machine.cores, num_gpus=len(machine.gpus), is_container=bool(container.kind)
    )
    yield from check_limits(limits)
    yield from check_room(
        memory_bytes=machine.memory_bytes,
        free_disk_bytes=machine.free_disk_bytes,
        store_dir=store_dir,
    )
    yield from check_file_system(store_dir)
