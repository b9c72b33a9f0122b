"""The GPUs, and what the probes find on them: a kernel on each, a sum over all.

A GPU that a run has claimed, or that another process uses, is left alone. On the others the probes
share the GPU's lease, so that no judge times a kernel meanwhile.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.doctor.finding import Finding, docker, error, warning
from forge.commands.doctor.probe import Outcome, run_probe
from forge.views.text.numbers import size

if TYPE_CHECKING:
    from pathlib import Path

    from forge.process.devices import Gpu, GpuUser

ON_CPU, SUM = "kernel on the CPU", "all-reduce"
"""Names of findings."""
WITHOUT_PEERS = "all-reduce without peer access"
"""The same sum with NCCL_P2P_DISABLE=1, if it failed."""
COLLECTIVE_S = 30.0
"""Maximum time of one sum over GPUs, after which the ranks end with NCCL's own error."""
NEEDED_BYTES = 3 << 30
"""Free memory of a GPU that is tried: three processes with a context each."""
CAPABILITIES = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
HEADERS = "python{}.{}-dev".format(*sys.version_info)
FIXES = {
    r"Python\.h": f"apt install {HEADERS}; Triton compiles its launchers against Python.h",
    r"C compiler|No such file or directory: '\S*(cc|gcc|clang)'": "apt install gcc",
    r"libcuda\.so|-lcuda": f"ldconfig on the host; {docker('--gpus all', CAPABILITIES)}",
    r"not compiled with CUDA|No HIP GPUs|Found no NVIDIA driver": (
        "make setup TORCH=cuda (or rocm): this torch is built for other devices"
    ),
    r"driver.*(too old|insufficient)": "install a newer driver, or a torch for an older CUDA",
    r"no kernel image|is not compatible with the current PyTorch": (
        "make setup TORCH=... with a build of torch for this GPU"
    ),
    r"error 802|not yet initialized": "systemctl start nvidia-fabricmanager (on the host)",
    r"out of memory": "free the GPU's memory: nvidia-smi shows its processes",
    r"No module named": '"make setup"',
    r"failed to map segment|noexec": "TRITON_CACHE_DIR and TMPDIR on a disk without noexec",
    r"No space left|Disk quota": "free space in TMPDIR",
    r"must be able to write it": "remove the file, or make it writable for all users",
}
"""Fix by a pattern in a probe's error or log."""
RESET = "nvidia-smi or rocm-smi shows the GPU's state; reset it, or reboot"
NCCL_CAUSES = (
    "usual causes: /dev/shm too small (docker run --shm-size=16g), peer access broken by the IOMMU "
    "or ACS (boot with iommu=pt, ACS off in the BIOS), a firewall on 127.0.0.1; NCCL_DEBUG=INFO "
    "says more"
)
BROKEN_PEERS = (
    "NCCL_P2P_DISABLE=1 works around it; boot with iommu=pt (or intel_iommu=off, amd_iommu=off) "
    "and ACS off in the BIOS"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The GPUs, and the outcomes of probes on them."""

    gpus: Sequence[Gpu] = ()
    hidden: str = ""
    """Message that says why GPUs are missing."""
    holders: Mapping[str, str] = field(default_factory=dict[str, str])
    """Runs that have claimed GPUs, by UUID."""
    users: Mapping[str, Sequence[GpuUser]] = field(default_factory=dict[str, "Sequence[GpuUser]"])
    """Processes on GPUs, by UUID."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    """Results of the probes, by the names of their findings."""

    def tried(self) -> list[Gpu]:
        """GPUs that the probes use: not in use, with enough free memory."""
        return [gpu for gpu in self.gpus if not self.why_left_alone(gpu)]

    def why_left_alone(self, gpu: Gpu) -> str:
        """The reason why no probe uses the GPU; empty if it is tried."""
        if holder := self.holders.get(gpu.uuid):
            return f"in use by {holder}"
        if users := self.users.get(gpu.uuid):
            return "in use: " + ", ".join(str(user) for user in users)
        if gpu.free_bytes < NEEDED_BYTES:
            return f"only {size(gpu.free_bytes)} free"
        return ""


async def try_gpus(facts: GpuFacts, folder: Path) -> GpuFacts:
    """The facts with the outcomes of the kernel on each GPU that is tried, and of the probes of all
    together. Without any GPU the kernel is evaluated."""
    uuids, found = [gpu.uuid for gpu in facts.tried()], dict[str, Outcome]()
    together = {"uuids": uuids, "timeout_s": COLLECTIVE_S}

    async def try_one(
        name: str, kind: str, gpus: Sequence[str], config: Mapping[str, Any], **env: str
    ) -> None:
        label = re.sub(r"\W+", "-", name)
        env["TRITON_CACHE_DIR"] = str(folder / label)  # so that the kernel is compiled
        found[name] = await run_probe(kind, folder, label=label, gpus=gpus, config=config, env=env)

    add_up = partial(try_one, kind="allreduce", gpus=uuids, config=together, NCCL_DEBUG="WARN")
    async with anyio.create_task_group() as tasks:
        for gpu in facts.tried():
            tasks.start_soon(
                try_one, f"kernel on GPU {gpu.index}", "kernel", [gpu.uuid], {"uuid": gpu.uuid}
            )
        if not facts.gpus:
            tasks.start_soon(try_one, ON_CPU, "kernel", (), {"uuid": ""})
        if len(uuids) > 1:
            tasks.start_soon(add_up, SUM)
    if SUM in found and found[SUM].fault:
        await add_up(WITHOUT_PEERS, NCCL_P2P_DISABLE="1")
    return replace(facts, outcomes=found)


def check_gpus(facts: GpuFacts) -> Iterator[Finding]:
    """Each GPU with its users, the kernels, and the sum."""
    if not facts.gpus:
        yield Finding(name="GPUs", found="none: everything runs on the CPU")
    for gpu in facts.gpus:
        free = f"{gpu.free_bytes / 1e9:.0f} of {gpu.memory_bytes / 1e9:.0f} GB free"
        users = "".join(f"; {user}" for user in facts.users.get(gpu.uuid, ()))
        yield Finding(name=f"GPU {gpu.index}", found=f"{gpu.name}, {free}, {gpu.uuid}{users}")
    if facts.hidden:
        yield warning("hidden GPUs", facts.hidden, fix="unset the variable, or end the split")
    for gpu in facts.gpus:
        if why := facts.why_left_alone(gpu):
            yield Finding(name=f"kernel on GPU {gpu.index}", found=f"{why}: not tried")
    for name, outcome in sorted(facts.outcomes.items()):
        if busy := outcome.get("busy"):
            yield Finding(name=name, found=f"{busy}: not tried")
        elif name == SUM:
            without_peers = facts.outcomes.get(WITHOUT_PEERS)
            yield check_allreduce(outcome, without_peers, num_gpus=len(facts.tried()))
        elif name != WITHOUT_PEERS:
            yield check_kernel(name, outcome)


def check_kernel(name: str, outcome: Outcome) -> Finding:
    """A Triton kernel was compiled, run and compared."""
    if outcome.fault:
        return error(name, outcome.fault, fix=find_fix(outcome))
    if not outcome.get("is_right"):
        found = "Triton's matrix product differs from torch's"
        return error(name, found, fix=f'"make setup" for versions that fit; {RESET}')
    how = "evaluated" if name == ON_CPU else "compiled and run"
    return Finding(name=name, found=f"{how} in {outcome.get('seconds'):.1f} s, the result is right")


def check_allreduce(outcome: Outcome, without_peers: Outcome | None, *, num_gpus: int) -> Finding:
    """Each rank has the sum of all, on the CPU (gloo) and on the GPUs (NCCL)."""
    name, expected = SUM, [num_gpus * (num_gpus + 1) / 2]
    sums = [answer for answer in outcome.answers if "sums" in answer]
    wrong = [answer for answer in sums if answer["sums"] != expected]
    if not wrong and not outcome.fault and len(sums) == 2 * num_gpus:
        found = f"gloo and NCCL add up correctly over {num_gpus} GPUs"
        return Finding(name=name, found=found)
    found = outcome.fault or "not all ranks reported a sum"
    if wrong:
        rank, backend, got = wrong[0]["rank"], wrong[0]["backend"], wrong[0]["sums"]
        found = f"rank {rank} has {got} by {backend} instead of {expected[0]:g}"
    if warned := re.findall(r"NCCL WARN (.*)", outcome.log):
        found = f"{found}; NCCL: {warned[-1]}"
    if without_peers is not None and not without_peers.fault:
        return error(name, f"{found}; it works with NCCL_P2P_DISABLE=1", fix=BROKEN_PEERS)
    return error(name, found, fix=NCCL_CAUSES)


def find_fix(outcome: Outcome) -> str:
    """The fix for the error of a probe, by its words."""
    text = f"{outcome.fault}\n{outcome.log}"
    fitting = (fix for pattern, fix in FIXES.items() if re.search(pattern, text, re.IGNORECASE))
    return next(fitting, RESET)
