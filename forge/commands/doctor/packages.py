"""Packages of judges, trainers and engines, each in the interpreter that will use it.

A package counts if it imports: the metadata of an installation says nothing about its libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.doctor.finding import Finding, Severity, error
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
class EngineFacts:
    """The interpreter that serves."""

    python: Interpreter
    table: ServeTable = field(default_factory=ServeTable)
    imported: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    """Results of importing ENGINE_PACKAGES."""
    gpus: Sequence[Gpu] = ()

    @property
    def installed(self) -> frozenset[str]:
        """Engines whose packages are there, whether they import or not: the choice of a run."""
        modules = self.python.modules
        return frozenset(
            name for name, kind in ENGINES.items() if modules.issuperset(kind.requires)
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
            gpus=[gpu.uuid for gpu in facts.gpus] if ENGINES[engine].needs_gpu else [],
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

    Args:
        targets: part to import by package.
        more: as of `run_probe`.
    """
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
    """A finding per package of judges and trainers."""
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
    chosen, why = choose_engine(facts.table, gpus=facts.gpus, installed=facts.installed)
    for name in ENGINES:
        yield _check_engine(name, facts, is_chosen=name == chosen)
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
