"""Findings of `forge doctor` as a table and as JSON; its probes, child processes with a deadline;
and the findings on what these report about packages and GPUs.

An error means that a run could not start; a warning, that it would be slower, less safe, or fail
under some settings.

A probe that hangs, crashes or cannot start is a result like any other: nothing is raised. A package
counts if it imports in the interpreter that will use it: the metadata of an installation says
nothing about its libraries. A GPU that a run has claimed, or that another process uses, is left
alone. On the others the probes share the GPU's lease, so that no judge times a kernel meanwhile.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from rich.table import Table
from rich.text import Text

from forge.config.schema import ServeTable
from forge.errors import ForgeError, pip_install
from forge.exits import EXTRAS
from forge.process.child import ChildSpec, open_child, read_ending
from forge.process.devices import Gpu, GpuUser
from forge.process.environment import child_env
from forge.serve import engines
from forge.views.text import printable, size

SCHEMA = 1
"""Version of the JSON. A new name or field keeps it; a removed or changed one raises it."""


class Severity(StrEnum):
    """Weight of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    found: str
    severity: Severity = Severity.OK
    fix: str = ""


def warning(name: str, found: str, *, fix: str) -> Finding:
    return Finding(name=name, found=found, severity=Severity.WARNING, fix=fix)


def error(name: str, found: str, *, fix: str) -> Finding:
    return Finding(name=name, found=found, severity=Severity.ERROR, fix=fix)


def docker(*flags: str) -> str:
    return f"docker run {' '.join(flags)}"


def can_run(findings: Sequence[Finding]) -> bool:
    return all(finding.severity is not Severity.ERROR for finding in findings)


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for programs. docs/how-to/machine.md describes the fields."""
    return {
        "schema": SCHEMA,
        "ok": can_run(findings),
        "findings": [asdict(finding) for finding in findings],
    }


MARKS = {
    Severity.OK: Text("ok", style="green"),
    Severity.WARNING: Text("warn", style="yellow"),
    Severity.ERROR: Text("NO", style="bold red"),
}


def render(findings: Sequence[Finding]) -> Table:
    table = Table("", "", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        cells = (Text(printable(text)) for text in (finding.name, finding.found, finding.fix))
        table.add_row(MARKS[finding.severity], *cells)
    return table


def summarize(findings: Sequence[Finding]) -> str:
    """The last line: numbers of errors and warnings, and what they mean."""
    counts: list[str] = []
    for severity in (Severity.ERROR, Severity.WARNING):
        number = sum(finding.severity is severity for finding in findings)
        counts.append(f"{number} {severity}{'' if number == 1 else 's'}")
    can = "can" if can_run(findings) else "could not"
    return f"{', '.join(counts)}: a run {can} start on this machine"


DEADLINES_S = {"imports": 120.0, "sandbox": 60.0, "kernel": 90.0, "allreduce": 60.0}
"""Maximum time of each probe. On a machine in good order each takes seconds, mostly of imports,
which take a minute on a cold network disk."""
LOG_LINES = 40
"""Lines of a probe's log that fixes are deduced from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    answers: Sequence[Mapping[str, Any]] = ()
    fault: str = ""
    """The reason why it did not end well, with what it was doing; empty if it did."""
    log: str = ""

    def get(self, key: str) -> Any:
        return next((one[key] for one in reversed(self.answers) if key in one), None)


async def run_probe(
    kind: str,
    folder: Path,
    *,
    label: str = "",
    config: Mapping[str, Any] | None = None,
    python: str = "",
    gpus: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a probe of `probes.py`, by this interpreter if none is given. `label`: unique file name
    of its log and answer in `folder`; absent: the kind. `gpus`: UUIDs that it may see."""
    name = label or kind
    answer_path, log_path = folder / f"{name}.answer", folder / f"{name}.log"
    spec = ChildSpec(
        name=name,
        argv=(python or sys.executable, "-m", "forge.commands.doctor.probes"),
        log_path=log_path,
        env=child_env(threads=1, gpus=gpus, extra=env),
        socket_path=None,
        config={**(config or {}), "kind": kind, "answer_path": str(answer_path)},
        stop_grace_s=0.0,
    )
    ended, fault = "", ""
    try:
        async with open_child(spec) as child:
            with anyio.move_on_after(DEADLINES_S[kind]):
                ended = await child.wait()
    except ForgeError as error:
        fault = str(error).splitlines()[0]
    log = read_ending(log_path, num_lines=LOG_LINES)
    answers = _read_answers(answer_path)
    outcome = Outcome(answers=answers, fault=fault, log=log)
    if fault or ended == "exit 0":
        return outcome
    return replace(outcome, fault=_describe(ended, outcome, deadline_s=DEADLINES_S[kind]))


def _describe(ended: str, outcome: Outcome, *, deadline_s: float) -> str:
    """The probe's own error, or its end, with what it was doing."""
    said = next((answer for answer in outcome.answers if "error" in answer), None)
    if said is not None:
        return f"{said['error']} (while {said['doing'] or 'starting'})"
    how = ended or f"no end within {deadline_s:.0f} s"
    last = outcome.log.splitlines()[-1:] if ended else []
    return ": ".join([f"{how} while {outcome.get('doing') or 'starting'}", *last])


def _read_answers(path: Path) -> list[Mapping[str, Any]]:
    """The lines; a last one that a crash cut off is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []


PACKAGES = {
    "torch": "torch",
    "triton": "triton.compiler",
    "transformers": "transformers:AutoModelForCausalLM",
    "peft": "peft:LoraConfig",
    "datasets": "datasets:Dataset",
    "trl": "trl.trainer.grpo_trainer:GRPOTrainer",
}
"""Packages of judges and trainers, and the part of each that these import."""
ENGINE_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "llama": {"llama_cpp": "llama_cpp.llama_cpp:llama_backend_init", "gguf": "gguf"},
    "vllm": {"torch": "torch", "vllm": "vllm.v1.engine.async_llm:AsyncLLM"},
    "hf": {
        "torch": "torch",
        "transformers": "transformers:AutoModelForCausalLM",
        "peft": "peft:PeftModel",
    },
}
LLAMA_FOR_GPUS = "make setup LLAMA=cuda (or hip, vulkan)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    version: str = ""
    fault: str = ""
    is_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    python: engines.Interpreter
    table: ServeTable = field(default_factory=ServeTable)
    imported: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    gpus: Sequence[Gpu] = ()

    @property
    def installed(self) -> frozenset[str]:
        """Engines whose packages are there, whether they import or not: the choice of a run."""
        modules = self.python.modules
        return frozenset(
            name for name, kind in engines.ENGINES.items() if modules.issuperset(kind.requires)
        )


async def import_for_engines(facts: EngineFacts, folder: Path) -> dict[str, Imported]:
    """The packages of the installed engines, each engine's in a child of its own. Those of hf are a
    trainer's, unless the engines have an interpreter of their own. A failure in one engine
    outweighs a success in another."""
    found, python = dict[str, Imported](), facts.python.python

    async def import_one(engine: str) -> None:
        one = await import_packages(
            ENGINE_PACKAGES[engine],
            folder,
            label=f"imports-{engine}",
            python=python,
            gpus=[gpu.uuid for gpu in facts.gpus] if engines.ENGINES[engine].needs_gpu else [],
            env=facts.table.env,
        )
        for name, package in one.items():
            if package.fault or name not in found:
                found[name] = package

    async with anyio.create_task_group() as tasks:
        for engine in facts.installed:
            if python or engine != "hf":
                tasks.start_soon(import_one, engine)
    return found


async def import_packages(
    targets: Mapping[str, str], folder: Path, *, label: str = "imports", **more: Any
) -> dict[str, Imported]:
    """Import targets in one child, in order; after a crash or a hang the rest is not tried.
    `targets`: part to import by package. `more`: as of `run_probe`."""
    config = {"targets": list(targets.items())}
    outcome = await run_probe("imports", folder, label=label, config=config, **more)
    found = {
        answer["name"]: Imported(**{key: answer[key] for key in answer if key != "name"})
        for answer in outcome.answers
        if "name" in answer
    }
    if outcome.fault:
        ended = outcome.get("importing") or next(iter(targets))
        rest = dict.fromkeys(targets, Imported(fault=f"not tried: {ended} does not import"))
        found = {**rest, ended: Imported(fault=outcome.fault), **found}
    return found


def check_packages(imports: Mapping[str, Imported]) -> Iterator[Finding]:
    for name in PACKAGES:
        one = imports.get(name) or Imported(fault="not tried")
        if one.is_missing:
            extra = "judge" if name in EXTRAS["judge"] else "train"
            yield error(name, "not installed", fix=f'{pip_install(extra)}, or "make setup"')
        elif one.fault:
            fix = f'"make setup", or pip install --force-reinstall {name}'
            yield error(name, f"does not import: {one.fault}", fix=fix)
        else:
            yield Finding(name=name, found=one.version)


def check_engines(facts: EngineFacts) -> Iterator[Finding]:
    """Each engine, and the one that a run chooses here."""
    python = facts.python
    if python.python:
        versions = ", ".join(f"{name} {version}" for name, version in python.versions.items())
        yield Finding(name="serve.python", found=f"{python.python}: {versions}")
    chosen, why = engines.choose_engine(facts.table, gpus=facts.gpus, installed=facts.installed)
    for name in engines.ENGINES:
        yield _check_engine(name, facts, is_chosen=name == chosen)
    is_slow = chosen == "hf" and bool(facts.gpus) and facts.table.engine == "auto"
    fix = f'"{LLAMA_FOR_GPUS}", or {engines.ENGINES["vllm"].advice}' if is_slow else ""
    severity = Severity.WARNING if is_slow else Severity.OK
    yield Finding(name="engine of runs", found=f"{chosen}: {why}", severity=severity, fix=fix)


def _check_engine(name: str, facts: EngineFacts, *, is_chosen: bool) -> Finding:
    kind, python, num_gpus = engines.ENGINES[name], facts.python, len(facts.gpus)
    severity = Severity.ERROR if is_chosen else Severity.WARNING
    imported = {package: facts.imported.get(package) for package in ENGINE_PACKAGES[name]}
    broken = [
        f"{each} does not import{python.where}: {one.fault}"
        for each, one in imported.items()
        if one is not None and one.fault
    ]
    if name not in facts.installed:
        found, fix = "not installed", kind.advice
        if kind.needs_gpu and not is_chosen:  # optional, and recommended only if there are GPUs
            severity, fix = Severity.OK, kind.advice if num_gpus else ""
    elif name == "vllm" and (mismatch := engines.find_mismatch(python)):
        versions = python.versions
        found = f"{versions['vllm']}, which does not match torch {versions['torch']}"
        fix = mismatch
    elif broken:
        found, fix = broken[0], f"{kind.advice}; or serve.engine = another one"
    else:
        severity, found = Severity.OK, _version_of(name, python)
        is_slow = name == "llama" and num_gpus > 0 and not python.has_gpu_llama
        fix = f'"{LLAMA_FOR_GPUS}" builds it for the GPUs' if is_slow else ""
    return Finding(name=f"engine {name}", found=found, severity=severity, fix=fix)


def _version_of(name: str, python: engines.Interpreter) -> str:
    if name == "vllm":
        version = python.versions.get("vllm", "of unknown version")
        return (
            version
            if engines.is_tested_vllm(version)
            else f"{version}; tested is {engines.TESTED_VLLM}"
        )
    if name == "llama":
        built = ", ".join(sorted(python.llama_backends - {"base"})) or "unknown"
        return f"installed, built for {built}"
    return f"transformers {python.versions.get('transformers', '?')}"


ON_CPU, SUM = "kernel on the CPU", "all-reduce"
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
    holders: Mapping[str, str] = field(default_factory=dict[str, str])
    users: Mapping[str, Sequence[GpuUser]] = field(default_factory=dict[str, "Sequence[GpuUser]"])
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])

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
