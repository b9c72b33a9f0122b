"""Reads the facts of this machine, runs the probes in parallel, and lists the findings.

    ├─ imports: here, of each engine in serve.python ─────┐
    ├─ sandbox                                            ├──▶ findings, by pure functions
    ├─ a kernel on each free GPU, or on the CPU           │
    └─ copies between GPUs, a sum by NCCL ────────────────┘

Each probe is a child process with a deadline, so this takes as long as the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from forge.commands.doctor.finding import Finding, error
from forge.commands.doctor.gpus import GpuFacts, check_builds, check_gpus, try_gpus
from forge.commands.doctor.host import Stopwatch, check_host, check_sandbox, read_host
from forge.commands.doctor.packages import (
    NEEDS,
    PACKAGES,
    EngineFacts,
    Imports,
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
    watch = Stopwatch()
    engines, faults = None, list[Finding]()
    try:
        engines = EngineFacts(python=read_interpreter(serve), table=serve or ServeTable())
    except MachineError as failure:
        fix = "serve.python must name a Python that runs"
        faults.append(error("engines", str(failure), fix=fix))
    machine = this_machine(store_dir, serve=None if engines is None else serve)
    gpus = GpuFacts(
        gpus=machine.gpus,
        hidden=machine.hidden_gpus,
        holders=holders(machine.gpus),
        users=machine.gpu_users,
    )
    trials = Trials(gpus, None if engines is None else replace(engines, gpus=machine.gpus))
    with ExitStack() as opened:
        folder, sockets = _open_folder(opened)
        anyio.run(trials.run, folder)
    host = read_host(machine, store_dir, watch)
    return [
        *check_host(host),
        *check_packages(trials.here),
        *faults,
        *trials.check_engines(),
        *check_builds(
            trials.gpus,
            {"torch": trials.here.torch, "torch of serve.python": trials.serving.torch},
            nvidia_driver=host.nvidia_driver,
            amd_driver=host.amd_driver,
        ),
        *check_gpus(trials.gpus),
        check_sandbox(trials.sandbox, host, sysctls=read_sysctls()),
        sockets,
    ]


class Trials:
    """The probes, and their results."""

    def __init__(self, gpus: GpuFacts, engines: EngineFacts | None) -> None:
        self.gpus = gpus
        self.here = Imports()
        """Packages of judges and trainers, in this interpreter."""
        self.serving = Imports()
        """Packages of engines, in the interpreter that serves."""
        self.sandbox = Outcome()
        self._engines = engines

    async def run(self, folder: Path) -> None:
        """Run all probes; `folder` is a private directory for their files."""

        async def import_here() -> None:
            self.here = await import_packages(PACKAGES, folder, needs=NEEDS)

        async def import_there() -> None:
            if self._engines is not None:
                self.serving = await import_for_engines(self._engines, folder)

        async def try_sandbox() -> None:
            self.sandbox = await run_probe("sandbox", folder)

        async def try_on_gpus() -> None:
            self.gpus = await try_gpus(self.gpus, folder)

        async with anyio.create_task_group() as tasks:
            for trial in (import_here, import_there, try_sandbox, try_on_gpus):
                tasks.start_soon(trial)

    def check_engines(self) -> Iterator[Finding]:
        """The engines, if their interpreter runs."""
        if self._engines is not None:
            imported = {**self.here.packages, **self.serving.packages}
            unmet = sorted(self.serving.unmet - self.here.unmet)
            yield from check_engines(replace(self._engines, imported=imported, unmet=unmet))


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
