"""Packages of judges, trainers and engines, each in the interpreter that will use it.

A package counts if it imports: the metadata of an installation says nothing about its libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from forge.commands.doctor.finding import Finding, Severity, error, warning
from forge.commands.doctor.probe import run_probe
from forge.config.schema import ServeTable
from forge.errors import pip_install
from forge.exits import EXTRAS
from forge.serve.engines import (
    ENGINES,
    TESTED_VLLM,
    Interpreter,
    choose_engine,
    find_mismatch,
    is_tested_vllm,
)

if TYPE_CHECKING:
    from pathlib import Path

    from forge.process.devices import Gpu

PACKAGES = {
    "torch": "torch",
    "triton": "triton.compiler",
    "transformers": "transformers:AutoModelForCausalLM",
    "peft": "peft:LoraConfig",
    "datasets": "datasets:Dataset",
    "trl": "trl.trainer.grpo_trainer:GRPOTrainer",
}
"""Packages of judges and trainers, and the part of each that these import."""
NEEDS = {
    "torch": ">=2.9",
    "triton": ">=3.5",
    "transformers": ">=5",
    "trl": ">=1.16,<1.17",
    "peft": ">=0.18",
    "datasets": ">=4",
}
"""forge's requirements, as in pyproject.toml."""
ENGINE_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "llama": {"llama_cpp": "llama_cpp.llama_cpp:llama_backend_init", "gguf": "gguf"},
    "vllm": {"torch": "torch", "vllm": "vllm.v1.engine.async_llm:AsyncLLM"},
    "hf": {
        "torch": "torch",
        "transformers": "transformers:AutoModelForCausalLM",
        "peft": "peft:PeftModel",
    },
}
"""The same of each engine's process."""
LLAMA_FOR_GPUS = "make setup LLAMA=cuda (or hip, vulkan)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of importing a package."""

    version: str = ""
    fault: str = ""
    """The error; empty if it imported."""
    is_missing: bool = False
    """True if there is no such package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """The build of an imported torch."""

    version: str
    cuda: str | None
    """Version of CUDA that it is built for; None for another build."""
    hip: str | None
    """Version of ROCm's HIP; None for another build."""


@dataclass(slots=True, kw_only=True)
class Imports:
    """Results of importing packages in an interpreter."""

    packages: dict[str, Imported] = field(default_factory=dict[str, Imported])
    torch: TorchBuild | None = None
    unmet: set[str] = field(default_factory=set[str])
    """Requirements that the installed versions do not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The interpreter that serves."""

    python: Interpreter
    table: ServeTable = field(default_factory=ServeTable)
    imported: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    """Results of importing ENGINE_PACKAGES."""
    unmet: Sequence[str] = ()
    """Requirements that the versions in that interpreter do not meet."""
    gpus: Sequence[Gpu] = ()

    @property
    def installed(self) -> frozenset[str]:
        """Engines whose packages are there, whether they import or not: the choice of a run."""
        modules = self.python.modules
        return frozenset(
            name for name, kind in ENGINES.items() if modules.issuperset(kind.requires)
        )


async def import_for_engines(facts: EngineFacts, folder: Path) -> Imports:
    """The packages of the installed engines, each engine's in a child of its own. Those of hf are a
    trainer's, unless the engines have an interpreter of their own. A failure in one engine
    outweighs a success in another."""
    found, python = Imports(), facts.python.python

    async def import_one(engine: str) -> None:
        one = await import_packages(
            ENGINE_PACKAGES[engine],
            folder,
            label=f"imports-{engine}",
            needs=dict.fromkeys((*NEEDS, "vllm"), ""),  # its interpreter may have other versions
            python=python,
            gpus=[gpu.uuid for gpu in facts.gpus] if ENGINES[engine].needs_gpu else [],
            env=facts.table.env,
        )
        for name, package in one.packages.items():
            if package.fault or name not in found.packages:
                found.packages[name] = package
        found.torch, found.unmet = found.torch or one.torch, found.unmet | one.unmet

    async with anyio.create_task_group() as tasks:
        for engine in facts.installed:
            if python or engine != "hf":
                tasks.start_soon(import_one, engine)
    return found


async def import_packages(
    targets: Mapping[str, str],
    folder: Path,
    *,
    needs: Mapping[str, str],
    label: str = "imports",
    python: str = "",
    gpus: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Imports:
    """Import targets in one child; after a crash the rest in a new one, after a hang none.

    Args:
        targets: part to import by package.
        needs: required versions by package, checked against what is installed.
        python, gpus, env: as of `run_probe`.
    """
    outcome = await run_probe(
        "imports", folder, label=label, python=python, gpus=gpus, env=env,
        config={"targets": list(targets.items()), "needs": needs},
    )  # fmt: skip
    found = Imports(unmet=set(outcome.get("unmet") or ()))
    if build := outcome.get("torch"):
        found.torch = TorchBuild(**build)
    for answer in outcome.answers:
        if name := answer.get("name"):
            found.packages[name] = Imported(**{k: answer[k] for k in answer if k != "name"})
    if outcome.fault:
        ended = outcome.get("importing") or next(iter(targets))
        found.packages.setdefault(ended, Imported(fault=outcome.fault))
        rest = {name: targets[name] for name in targets if name not in found.packages}
        if outcome.is_late:
            late = Imported(fault=f"not tried: {ended} hangs")
            found.packages |= dict.fromkeys(rest, late)
        elif rest:
            more = await import_packages(
                rest, folder, needs=needs, label=f"{label}-{len(rest)}", python=python, gpus=gpus,
                env=env,
            )  # fmt: skip
            found.packages |= more.packages
            found.torch, found.unmet = more.torch or found.torch, more.unmet
    return found


def check_packages(imports: Imports) -> Iterator[Finding]:
    """A finding per package of judges and trainers, and one for versions that do not fit."""
    for name in PACKAGES:
        one = imports.packages.get(name) or Imported(fault="not tried")
        if one.is_missing:
            extra = "judge" if name in EXTRAS["judge"] else "train"
            yield error(name, "not installed", fix=f'{pip_install(extra)}, or "make setup"')
        elif one.fault:
            fix = f'"make setup", or pip install --force-reinstall "{name}{NEEDS[name]}"'
            yield error(name, f"does not import: {one.fault}", fix=fix)
        else:
            yield Finding(name=name, found=one.version)
    if imports.unmet:
        fix = '"make setup" installs versions that fit'
        yield warning("versions", "; ".join(sorted(imports.unmet)), fix=fix)


def check_engines(facts: EngineFacts) -> Iterator[Finding]:
    """Each engine, and the one that a run chooses here."""
    python = facts.python
    if python.python:
        versions = ", ".join(f"{name} {version}" for name, version in python.versions.items())
        yield Finding(name="serve.python", found=f"{python.python}: {versions}")
    chosen, why = choose_engine(facts.table, gpus=facts.gpus, installed=facts.installed)
    for name in ENGINES:
        yield _check_engine(name, facts, is_chosen=name == chosen)
    if facts.unmet:
        fix = f"an interpreter for each engine that pins its packages; {ENGINES['vllm'].advice}"
        yield warning("versions of engines", "; ".join(facts.unmet), fix=fix)
    is_slow = chosen == "hf" and bool(facts.gpus) and facts.table.engine == "auto"
    fix = f'"{LLAMA_FOR_GPUS}", or {ENGINES["vllm"].advice}' if is_slow else ""
    severity = Severity.WARNING if is_slow else Severity.OK
    yield Finding(name="engine of runs", found=f"{chosen}: {why}", severity=severity, fix=fix)


def _check_engine(name: str, facts: EngineFacts, *, is_chosen: bool) -> Finding:
    kind, python, num_gpus = ENGINES[name], facts.python, len(facts.gpus)
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
    elif name == "vllm" and (mismatch := find_mismatch(python)):
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


def _version_of(name: str, python: Interpreter) -> str:
    if name == "vllm":
        version = python.versions.get("vllm", "of unknown version")
        return version if is_tested_vllm(version) else f"{version}; tested is {TESTED_VLLM}"
    if name == "llama":
        built = ", ".join(sorted(python.llama_backends - {"base"})) or "unknown"
        return f"installed, built for {built}"
    return f"transformers {python.versions.get('transformers', '?')}"
