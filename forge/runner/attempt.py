"""Description of one start of a run, for repeating it: commit and uncommitted changes, versions,
machine."""

from __future__ import annotations

import platform
import subprocess
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import forge
from forge.process.machine import total_memory_bytes
from forge.records import Attempt
from forge.runner.plan.machine import count_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.process.devices import Gpu

PACKAGES = (
    "torch", "triton", "transformers", "trl", "peft", "datasets", "tokenizers",
    "llama-cpp-python", "gguf", "vllm", "numpy",
)  # fmt: skip
MAX_DIFF_BYTES = 1 << 20
"""Maximum recorded length of uncommitted changes; longer ones are cut."""


def describe_attempt(attempt: int, *, seed: int, gpus: Sequence[Gpu]) -> Attempt:
    """Describe this start. Takes milliseconds; imports nothing heavy."""
    return Attempt(
        attempt=attempt,
        started_at=time.time(),
        commit=_git("rev-parse", "HEAD").strip(),
        code_diff=_git("diff", "HEAD", "--", "forge", "experiments")[:MAX_DIFF_BYTES],
        versions=_versions(),
        machine={
            "host": platform.node(),
            "kernel": platform.release(),
            "cores": count_cores(),
            "memory_bytes": total_memory_bytes(),
            "gpus": [
                {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "bytes": gpu.memory_bytes}
                for gpu in gpus
            ],
        },
        seed=seed,
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "forge": forge.__version__}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _git(*args: str) -> str:
    """Output of git in the checkout that contains forge; empty if there is none."""
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=Path(forge.__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
