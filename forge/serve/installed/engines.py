# pyright: strict
"""The engines: the module of each child, and the checks whether this machine can run it.

Called by `replicas`, `forge plan` and `forge doctor`. A new engine needs an entry here and a module
that serves the same endpoints (see `forge.serve.engine.app`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.errors import ConfigError, MachineError, pip_install
from forge.serve.installed.versions import TESTED_VLLM, Interpreter, find_mismatch, read_interpreter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import ServeTable

HTTP = ("anyio", "starlette", "uvicorn", "httptools", "numpy", "tokenizers", "jinja2")
"""Modules that the endpoints of every engine need."""
LLAMA_MODELS = frozenset({"qwen3"})
"""Values of model_type in config.json that `forge.serve.llama` can convert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine for `serve.engine`."""

    module: str
    """Module for `python -m`."""
    requires: tuple[str, ...]
    """Modules that its interpreter needs."""
    advice: str
    """Instructions to install them."""
    start_timeout_s: float
    """Default of serve.start_timeout_s: seconds until /health answers."""
    needs_gpu: bool = False


ENGINES: dict[str, EngineKind] = {
    "llama": EngineKind(
        module="forge.serve.llama.app",
        requires=("llama_cpp", "gguf"),
        advice=f"`make setup` or {pip_install('llama')} builds it; that needs a C++ compiler "
        "(apt install g++)",
        start_timeout_s=120.0,
    ),
    "vllm": EngineKind(
        module="forge.serve.vllm.app",
        requires=("vllm", *HTTP),
        advice=f'install "vllm=={TESTED_VLLM}.*" in a separate interpreter, serve.python',
        start_timeout_s=300.0,
        needs_gpu=True,
    ),
    "hf": EngineKind(
        module="forge.serve.hf.app",
        requires=("torch", "transformers", "peft", *HTTP),
        advice=f"`make setup` or {pip_install('train')} installs it",
        start_timeout_s=180.0,
    ),
}


def engine_argv(table: ServeTable) -> tuple[str, ...]:
    """The command of an engine's child, without the path of its config."""
    return (str(table.python or sys.executable), "-m", kind_of(table).module)


def start_timeout_s(table: ServeTable) -> float:
    """Seconds until /health must answer."""
    return table.start_timeout_s or kind_of(table).start_timeout_s


def kind_of(table: ServeTable) -> EngineKind:
    """The engine of a table; for "auto", which `resolve` replaces, the engine for CPUs."""
    return ENGINES["llama" if table.engine == "auto" else table.engine]


def installed_engines(table: ServeTable | None = None) -> frozenset[str]:
    """Names of engines whose modules are in `serve.python`, or else in this interpreter. Raises
    MachineError if that does not run."""
    found = read_interpreter(table)
    return frozenset(name for name, kind in ENGINES.items() if not _missing(kind, found))


def choose_engine(
    table: ServeTable,
    *,
    gpus: Sequence[object],
    installed: frozenset[str],
    model_type: str | None = None,
) -> tuple[str, str]:
    """Name of the engine and the reason for people. For "auto": the fastest one that is `installed`
    and serves the model on these devices.

    Args:
        model_type: value of the model's config.json; None if unknown.
    """
    if table.engine != "auto":
        return table.engine, "as serve.engine says"
    serves_model = model_type is None or model_type in LLAMA_MODELS
    if gpus and "vllm" in installed:
        return "vllm", "the fastest on GPUs"
    why_not_vllm = "vllm is not installed" if gpus else "no GPU for it"
    if "llama" in installed or "hf" not in installed:
        if not serves_model and "hf" in installed:
            return "hf", f"{why_not_vllm}, and llama does not serve {model_type}; hf is slow"
        if not gpus:
            return "llama", "the fastest on a CPU"
        if "hf" not in installed or read_interpreter(table).has_gpu_llama:
            return "llama", f"{why_not_vllm}; llama is built for GPUs"
        return "hf", f"{why_not_vllm}, and llama is built for the CPU; hf is slow"
    return "hf", f"{why_not_vllm}, llama is not installed either; hf is slow"


def resolve(
    table: ServeTable, *, gpus: Sequence[object], model_type: str | None = None
) -> ServeTable:
    """The table with an engine in place of "auto". Raises MachineError like `installed_engines`."""
    if table.engine != "auto":
        return table
    installed = installed_engines(table)
    name, _ = choose_engine(table, gpus=gpus, installed=installed, model_type=model_type)
    return table.model_copy(update={"engine": name})


def check_engine(table: ServeTable, *, gpus: Sequence[object] = ()) -> None:
    """Raise MachineError, in one line, if the engine cannot run here: it is not installed, it was
    built for another torch, or for other devices. `gpus`: those of all replicas; empty is the CPU.
    """
    table = resolve(table, gpus=gpus)
    fault = find_fault(table.engine, read_interpreter(table), num_gpus=len(gpus))
    if fault is not None:
        raise MachineError(f'serve.engine = "{table.engine}": {fault}')


def check_adapters(table: ServeTable, *, max_lora_rank: int) -> None:
    """Raise ConfigError if the table's engine cannot serve adapters in the table's precision."""
    if table.engine == "vllm" and table.precision == "exact" and max_lora_rank:
        raise ConfigError(
            'serve.precision = "exact": vllm serves adapters in bf16 only; write "fast", or take '
            'serve.engine = "hf"'
        )


def find_fault(engine: str, found: Interpreter, *, num_gpus: int) -> str | None:
    """The reason why an engine cannot run in an interpreter on `num_gpus` GPUs, or None."""
    kind = ENGINES[engine]
    if missing := _missing(kind, found):
        return f"{missing[0]} is not installed{found.where}; {kind.advice}"
    if engine == "vllm" and (mismatch := find_mismatch(found)):
        return mismatch
    if kind.needs_gpu and not num_gpus:
        return "it needs a GPU, and devices.serve gives it none; llama and hf run on the CPU"
    if engine == "llama" and num_gpus and not found.has_gpu_llama:
        cards = "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
        other = sorted(found.llama_backends & {"cuda", "hip"})  # of cards that are not here
        built = other[0] if other else "the CPU"
        return (
            f"llama.cpp is built for {built}{found.where}, and devices.serve gives it {cards};"
            " `make setup LLAMA=cuda` (or hip, vulkan) builds it for them"
        )
    return None


def _missing(kind: EngineKind, found: Interpreter) -> list[str]:
    return [name for name in kind.requires if name not in found.modules]
