"""Runs the probes in parallel: imports, sandbox, kernels, copies between GPUs, a sum over all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from forge.commands.doctor.engines import TARGETS, EngineFacts
from forge.commands.doctor.probe import Outcome, run_probe
from forge.commands.doctor.software import NEEDS, PACKAGES, Imports, import_packages
from forge.serve.engines import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from forge.commands.doctor.gpus import GpuFacts

SANDBOX_S, KERNEL_S, PEERS_S, ALLREDUCE_S = 60.0, 90.0, 90.0, 60.0
"""Maximum time of each probe. On a machine in good order each takes seconds, mostly of imports."""
COLLECTIVE_S = 30.0
"""Maximum time of one sum over GPUs, after which the ranks end with NCCL's own error."""
TRACED = {"NCCL_DEBUG": "WARN"}
NO_PEERS = {"NCCL_P2P_DISABLE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Results of the probes that do not concern GPUs."""

    here: Imports
    """Packages of judges and trainers, in this interpreter."""
    serving: Imports
    """Packages of engines, in the interpreter that serves."""
    sandbox: Outcome


async def try_all(
    folder: Path, gpus: GpuFacts, engines: EngineFacts | None
) -> tuple[Trials, GpuFacts]:
    """Run all probes. Returns their results, and the GPUs' facts with the outcomes.

    Args:
        folder: private directory for their files.
        engines: facts of the interpreter that serves; None if it does not run.
    """
    imports, outcomes = dict[str, Imports](), dict[str, Outcome]()

    async def try_imports(name: str) -> None:
        imports[name] = await _import(name, folder, gpus, engines)

    async def try_sandbox() -> None:
        outcomes["sandbox"] = await run_probe(
            "sandbox", label="sandbox", folder=folder, config={}, deadline_s=SANDBOX_S
        )

    async def try_gpus() -> None:
        facts.append(await _try_gpus(folder, gpus))

    facts: list[GpuFacts] = []
    async with anyio.create_task_group() as tg:
        for name in ("", *_engines_to_import(engines)):
            tg.start_soon(try_imports, name)
        tg.start_soon(try_sandbox)
        tg.start_soon(try_gpus)
    here = imports.pop("")
    return Trials(here=here, serving=_join(imports), sandbox=outcomes["sandbox"]), facts[0]


def _engines_to_import(engines: EngineFacts | None) -> list[str]:
    """Installed engines. Packages of hf are those of a trainer, unless it has an interpreter."""
    if engines is None:
        return []
    own = bool(engines.python.python)
    return [name for name in ENGINES if name in engines.installed and (own or name != "hf")]


async def _import(
    engine: str, folder: Path, gpus: GpuFacts, engines: EngineFacts | None
) -> Imports:
    """Import the packages of an engine, or those of judges and trainers for ""."""
    if engines is None or not engine:
        return await import_packages(PACKAGES, folder=folder, label="imports", needs=NEEDS)
    return await import_packages(
        TARGETS[engine],
        folder=folder,
        label=f"imports-{engine}",
        needs=dict.fromkeys((*NEEDS, "vllm"), ""),  # its interpreter may have other versions
        python=engines.python.python,
        gpus=[gpu.uuid for gpu in gpus.gpus] if ENGINES[engine].needs_gpu else (),
        extra=engines.table.env,
    )


def _join(imports: dict[str, Imports]) -> Imports:
    """The results of several engines in one interpreter. A failure outweighs a success."""
    packages = {name: one for each in imports.values() for name, one in each.packages.items()}
    for each in imports.values():
        packages |= {name: one for name, one in each.packages.items() if one.fault}
    torch = next((each.torch for each in imports.values() if each.torch), None)
    unmet = sorted({line for each in imports.values() for line in each.unmet})
    return Imports(packages=packages, torch=torch, unmet=unmet)


async def _try_gpus(folder: Path, gpus: GpuFacts) -> GpuFacts:
    """Run the kernel on each GPU to be tried, and the probes of all together. Without any GPU the
    kernel is evaluated."""
    uuids, found = [gpu.uuid for gpu in gpus.tried()], dict[str, Outcome]()

    async def try_kernel(uuid: str) -> None:
        label = f"kernel-{uuids.index(uuid)}" if uuid else "kernel-cpu"
        cache = {"TRITON_CACHE_DIR": str(folder / label)}  # so that the kernel is compiled
        found[uuid] = await run_probe(
            "kernel", label=label, folder=folder, deadline_s=KERNEL_S, gpus=[uuid] if uuid else (),
            config={"uuid": uuid or None}, extra=cache,
        )  # fmt: skip

    async def try_pairs() -> None:
        found["peers"] = await run_probe(
            "peers", label="peers", folder=folder, deadline_s=PEERS_S, gpus=uuids,
            config={"uuids": uuids},
        )  # fmt: skip

    async def try_sum(label: str, extra: dict[str, str]) -> None:
        found[label] = await run_probe(
            "allreduce", label=label, folder=folder, deadline_s=ALLREDUCE_S, gpus=uuids,
            config={"uuids": uuids, "timeout_s": COLLECTIVE_S}, extra=extra,
        )  # fmt: skip

    async with anyio.create_task_group() as tg:
        for uuid in uuids or ([""] if not gpus.gpus else []):
            tg.start_soon(try_kernel, uuid)
        if len(uuids) > 1:
            tg.start_soon(try_pairs)
            tg.start_soon(try_sum, "allreduce", TRACED)
    if "allreduce" in found and found["allreduce"].fault:
        await try_sum("without-peers", TRACED | NO_PEERS)
    return replace(
        gpus,
        kernels={uuid: found[uuid] for uuid in (*uuids, "") if uuid in found},
        peers=found.get("peers"),
        allreduce=found.get("allreduce"),
        without_peers=found.get("without-peers"),
    )
