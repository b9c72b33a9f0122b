"""Reads the facts of this machine, runs the probes in parallel, and lists the findings.

    ├─ imports: here, of each engine in serve.python ─────┐
    ├─ sandbox                                            ├──▶ findings, by pure functions
    ├─ a kernel on each free GPU, or on the CPU           │
    └─ a sum over all GPUs by NCCL ───────────────────────┘

Each probe is a child process with a deadline, so this takes as long as the slowest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from forge.commands.doctor.finding import Finding, error
from forge.commands.doctor.gpus import GpuFacts, check_gpus, try_gpus
from forge.commands.doctor.host import check_host, check_sandbox, read_host
from forge.commands.doctor.packages import (
    PACKAGES,
    EngineFacts,
    Imported,
    check_engines,
    check_packages,
    import_for_engines,
    import_packages,
)
from forge.commands.doctor.probe import Outcome, run_probe
from forge.config.schema import ServeTable
from forge.errors import ForgeError, MachineError
from forge.evalpool.judge.sandbox.enter import read_sysctls
from forge.process.gpu_locks import holders
from forge.process.sockets import open_socket_dir
from forge.runner.plan.machine import this_machine
from forge.serve.engines import read_interpreter


def examine(store_dir: Path, *, serve: ServeTable | None = None) -> list[Finding]:
    """Runs all checks.

    Args:
        store_dir: parent of run directories; its disk is checked.
        serve: `[serve]` of an experiment, to check the engines of its interpreter; absent means
            this interpreter.
    """
    python, of_engines = None, list[Finding]()
    try:
        python = read_interpreter(serve)
    except MachineError as failure:
        fix = "serve.python must name a Python that runs"
        of_engines.append(error("engines", str(failure), fix=fix))
    machine = this_machine(store_dir, serve=None if python is None else serve)
    gpus = GpuFacts(
        gpus=machine.gpus,
        hidden=machine.hidden_gpus,
        holders=holders(machine.gpus),
        users=machine.gpu_users,
    )
    engines = None
    if python is not None:
        engines = EngineFacts(python=python, table=serve or ServeTable(), gpus=machine.gpus)
    with ExitStack() as opened:
        folder, sockets = _open_folder(opened)
        here, serving, sandbox, gpus = anyio.run(_try_all, folder, gpus, engines)
    host = read_host(machine, store_dir)
    if engines is not None:
        of_engines = [*check_engines(replace(engines, imported={**here, **serving}))]
    return [
        *check_host(host),
        *check_packages(here),
        *of_engines,
        *check_gpus(gpus),
        check_sandbox(sandbox, host, sysctls=read_sysctls()),
        sockets,
    ]


async def _try_all(
    folder: Path, gpus: GpuFacts, engines: EngineFacts | None
) -> tuple[Mapping[str, Imported], Mapping[str, Imported], Outcome, GpuFacts]:
    """Run all probes; `folder` is a private directory for their files. Returns the packages of this
    interpreter and of the one that serves, the sandbox, and the GPUs."""
    found: dict[str, Any] = {"serving": {}}

    async def keep(name: str, trial: Awaitable[Any]) -> None:
        found[name] = await trial

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep, "here", import_packages(PACKAGES, folder))
        tasks.start_soon(keep, "sandbox", run_probe("sandbox", folder))
        tasks.start_soon(keep, "gpus", try_gpus(gpus, folder))
        if engines is not None:
            tasks.start_soon(keep, "serving", import_for_engines(engines, folder))
    return found["here"], found["serving"], found["sandbox"], found["gpus"]


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
