"""Engines of the interpreter that serves: installed, importable, and the one of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.commands.doctor.finding import Finding, Severity, warning
from forge.commands.doctor.software import Imported
from forge.config.schema import ServeTable
from forge.serve.engines import (
    ENGINES,
    TESTED_VLLM,
    Interpreter,
    choose_engine,
    find_mismatch,
    is_tested_vllm,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.process.devices import Gpu

LLAMA_FOR_GPUS = "make setup LLAMA=cuda (or hip, vulkan)"
TARGETS: Mapping[str, Mapping[str, str]] = {
    "llama": {"llama_cpp": "llama_cpp.llama_cpp:llama_backend_init", "gguf": "gguf"},
    "vllm": {"torch": "torch", "vllm": "vllm.v1.engine.async_llm:AsyncLLM"},
    "hf": {
        "torch": "torch",
        "transformers": "transformers:AutoModelForCausalLM",
        "peft": "peft:PeftModel",
    },
}
"""Packages of each engine, and the part of each that its process imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Facts of the interpreter that serves."""

    python: Interpreter
    table: ServeTable = field(default_factory=ServeTable)
    imported: Mapping[str, Imported] = field(default_factory=dict[str, Imported])
    """Results of importing TARGETS."""
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
    found = f"{chosen}: {why}"
    if chosen == "hf" and facts.gpus and facts.table.engine == "auto":
        fix = f'"{LLAMA_FOR_GPUS}", or {ENGINES["vllm"].advice}'
        yield warning("engine of runs", found, fix=fix)
    else:
        yield Finding(name="engine of runs", found=found)


def _check_engine(name: str, facts: EngineFacts, *, is_chosen: bool) -> Finding:
    label, kind = f"engine {name}", ENGINES[name]
    bad = Severity.ERROR if is_chosen else Severity.WARNING
    if name not in facts.installed:
        if kind.needs_gpu and not is_chosen:  # optional, and recommended only if there are GPUs
            return Finding(name=label, found="not installed", fix=kind.advice if facts.gpus else "")
        return Finding(name=label, found="not installed", severity=bad, fix=kind.advice)
    version = facts.python.versions.get("vllm", "of unknown version")
    if name == "vllm" and (mismatch := find_mismatch(facts.python)):
        found = f"{version}, which does not match torch {facts.python.versions['torch']}"
        return Finding(name=label, found=found, severity=bad, fix=mismatch)
    for package in TARGETS[name]:
        if (one := facts.imported.get(package)) is not None and one.fault:
            found = f"{package} does not import{facts.python.where}: {one.fault}"
            fix = f"{kind.advice}; or serve.engine = another one"
            return Finding(name=label, found=found, severity=bad, fix=fix)
    if name == "vllm":
        tested = "" if is_tested_vllm(version) else f"; tested is {TESTED_VLLM}"
        return Finding(name=label, found=f"{version}{tested}")
    if name == "llama":
        return _check_llama(label, facts)
    transformers = facts.python.versions.get("transformers", "?")
    return Finding(name=label, found=f"transformers {transformers}")


def _check_llama(label: str, facts: EngineFacts) -> Finding:
    built = ", ".join(sorted(facts.python.llama_backends - {"base"})) or "unknown"
    is_slow = bool(facts.gpus) and not facts.python.has_gpu_llama
    fix = f'"{LLAMA_FOR_GPUS}" builds it for the GPUs' if is_slow else ""
    return Finding(name=label, found=f"installed, built for {built}", fix=fix)
