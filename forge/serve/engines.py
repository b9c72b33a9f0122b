# pyright: strict
"""The engines: the module of each child, the modules and versions of their interpreter, and the
checks whether this machine can run one.

Imports nothing heavy and no engine; another interpreter runs `interpreter.py`, once per process. A
new engine needs an entry here and a module that serves the same endpoints
(`forge.serve.engine.endpoints`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError, pip_install
from forge.process.devices import Vendor, inventory
from forge.process.environment import child_env
from forge.serve import interpreter

if TYPE_CHECKING:
    from forge.config.schema import ServeTable

HTTP = ("anyio", "starlette", "uvicorn", "numpy", "tokenizers", "jinja2")
TESTED_VLLM = "0.24"
"""Minor version that `forge.serve.vllm` was tested with; pyproject.toml requires it."""
GET_VLLM = (
    f'python3 -m venv vllm-env && vllm-env/bin/pip install "vllm=={TESTED_VLLM}.*", then '
    'serve.python = "vllm-env/bin/python"'
)
"""Instructions to install vLLM in an interpreter of its own, since it pins its own torch."""
TORCH = re.compile(r"torch\s*\(?==\s*([^\s;,)]+)")
"""The exact version in a requirement of torch."""
PYTHON_AT_LEAST = (3, 11)
"""The same as in pyproject.toml and in forge.install, which must load under older versions."""
ASK_TIMEOUT_S = 60.0
GPU_BACKENDS = {
    Vendor.NVIDIA: frozenset({"cuda", "vulkan"}),
    Vendor.AMD: frozenset({"hip", "vulkan"}),
}
"""Backends of llama.cpp for GPUs, as `make setup LLAMA=` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    module: str
    requires: tuple[str, ...]
    advice: str
    start_timeout_s: float
    """Default of serve.start_timeout_s: seconds until /health answers."""
    needs_gpu: bool = False


ENGINES: dict[str, EngineKind] = {
    "llama": EngineKind(
        module="forge.serve.llama",
        requires=("llama_cpp", "gguf"),
        advice=f"`make setup` or {pip_install('llama')} builds it; that needs a C++ compiler "
        "(apt install g++)",
        start_timeout_s=120.0,
    ),
    "vllm": EngineKind(
        module="forge.serve.vllm",
        requires=("vllm", *HTTP),
        advice=GET_VLLM,
        start_timeout_s=300.0,
        needs_gpu=True,
    ),
    "hf": EngineKind(
        module="forge.serve.hf",
        requires=("torch", "transformers", "peft", *HTTP),
        advice=f"`make setup` or {pip_install('train')} installs it",
        start_timeout_s=180.0,
    ),
}


def engine_argv(table: ServeTable) -> tuple[str, ...]:
    return (str(table.python or sys.executable), "-m", kind_of(table).module)


def start_timeout_s(table: ServeTable) -> float:
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
    table: ServeTable, *, gpus: Sequence[object], installed: frozenset[str],
    no_llama: str | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Name of the engine and the reason for people. For "auto": the fastest one that is `installed`
    and serves the model on these devices. `no_llama`: reason why llama does not serve it."""
    if table.engine != "auto":
        return table.engine, "as serve.engine says"
    if gpus and "vllm" in installed:
        return "vllm", "the fastest on GPUs"
    why_not_vllm = "vllm is not installed" if gpus else "no GPU for it"
    if "llama" in installed or "hf" not in installed:
        if no_llama is not None and "hf" in installed:
            return "hf", f"{why_not_vllm}, and llama does not serve the model: {no_llama}"
        if not gpus:
            return "llama", "the fastest on a CPU"
        if "hf" not in installed or read_interpreter(table).has_gpu_llama:
            return "llama", f"{why_not_vllm}; llama is built for GPUs"
        return "hf", f"{why_not_vllm}, and llama is built for the CPU; hf is slow"
    return "hf", f"{why_not_vllm}, llama is not installed either; hf is slow"


def resolve(table: ServeTable, *, gpus: Sequence[object]) -> ServeTable:
    """The table with an engine in place of "auto". Raises MachineError like `installed_engines`."""
    if table.engine != "auto":
        return table
    name, _ = choose_engine(table, gpus=gpus, installed=installed_engines(table))
    return table.model_copy(update={"engine": name})


def check_engine(table: ServeTable, *, gpus: Sequence[object] = ()) -> None:
    """Raise MachineError, in one line, if the engine cannot run here: it is not installed, or built
    for another torch or other devices. `gpus`: those of all replicas; empty is the CPU."""
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
            " `make setup LLAMA=cuda` (or hip, vulkan) builds it for them; vLLM is faster there:"
            f" {GET_VLLM}"
        )
    return None


def _missing(kind: EngineKind, found: Interpreter) -> list[str]:
    return [name for name in kind.requires if name not in found.modules]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    python: str
    """Its path for messages; empty for this process's interpreter."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: frozenset[str] = frozenset()
    """Installed modules among those that engines need."""
    vllm_requires: Sequence[str] = ()
    llama_backends: frozenset[str] = frozenset()
    """cpu, cuda, hip, vulkan, and libraries that are no devices."""

    @property
    def where(self) -> str:
        """ " in PATH" for messages; empty for this process's interpreter."""
        return f" in {self.python}" if self.python else ""

    @property
    def has_gpu_llama(self) -> bool:
        """True if llama.cpp was built for this machine's GPUs, or for any if it has none."""
        vendors = {gpu.vendor for gpu in inventory()} or set(Vendor)
        return any(self.llama_backends & GPU_BACKENDS[vendor] for vendor in vendors)


def read_interpreter(table: ServeTable | None = None) -> Interpreter:
    """The interpreter of `serve.python`, or else this one. Raises MachineError if it fails."""
    if table is None or (table.python is None and "PYTHONPATH" not in table.env):
        python, found = "", interpreter.describe()
    else:
        python = str(table.python or sys.executable)
        found = _ask(python, tuple(sorted(table.env.items())))
    return Interpreter(
        python=python,
        versions=found["versions"],
        modules=frozenset(found["modules"]),
        vllm_requires=found["vllm_requires"],
        llama_backends=frozenset(found["llama_backends"]),
    )


@cache
def _ask(python: str, env: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    # child_env keeps the file's folder off sys.path, so that no module of ours shadows theirs.
    argv = [python, str(interpreter.__file__)]
    try:
        done = subprocess.run(
            argv, env=child_env(threads=1, extra=dict(env)), capture_output=True, text=True,
            timeout=ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return _checked(json.loads(done.stdout), python=python)
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}, no message"])[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = str(error)
    raise MachineError(f'serve.python = "{python}" is not a working Python: {said}')


def _checked(found: Mapping[str, Any], *, python: str) -> Mapping[str, Any]:
    """Raises MachineError if no engine of forge can run in it."""
    major, minor = found["python"]
    if (major, minor) < PYTHON_AT_LEAST:
        needs = "forge needs {}.{} or newer".format(*PYTHON_AT_LEAST)
        raise MachineError(f'serve.python = "{python}" is Python {major}.{minor}; {needs}')
    if "forge" not in found["modules"]:
        raise MachineError(
            f'serve.python = "{python}" has no forge, and this forge is not a checkout: install'
            " its wheel there too, with --no-deps"
        )
    return found


def find_mismatch(found: Interpreter) -> str | None:
    """The error line if torch is not the version that vLLM was compiled against, or None: with
    another its libraries do not load, or crash."""
    pins = (TORCH.match(line) for line in found.vllm_requires if "extra" not in line)
    wanted = next((pin[1] for pin in pins if pin), None)
    torch, vllm = found.versions.get("torch"), found.versions.get("vllm")
    # Without the local part, as in 2.11.0+cu130.
    if not (wanted and vllm and torch) or torch.split("+")[0] == wanted.split("+")[0]:
        return None
    return (
        f"vllm {vllm}{found.where} needs torch {wanted}; found torch {torch}. Give vLLM an"
        f" interpreter of its own: {GET_VLLM}"
    )


def is_tested_vllm(version: str) -> bool:
    return re.match(re.escape(TESTED_VLLM) + r"(\.|$)", version) is not None
