"""Description of one start of a run, for repeating it: commit and uncommitted changes, versions,
machine."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forge import origin
from forge.process.machine import total_memory_bytes
from forge.records import Attempt
from forge.runner.plan.machine import count_cores
from forge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.process.devices import Gpu

PACKAGES = (
    "torch", "triton", "transformers", "trl", "peft", "datasets", "tokenizers",
    "llama-cpp-python", "gguf", "vllm", "numpy",
)  # fmt: skip
MAX_DIFF_BYTES = 1 << 20
"""Maximum recorded length of uncommitted changes; longer ones are cut."""
UNKNOWN_CHANGES = "forge was built from a checkout with uncommitted changes, which are not known\n"


def describe_attempt(attempt: int, *, seed: int, gpus: Sequence[Gpu]) -> Attempt:
    """Describe this start. Takes milliseconds; imports nothing heavy."""
    commit, code_diff = _describe_code(origin.PACKAGE)
    return Attempt(
        attempt=attempt,
        started_at=time.time(),
        commit=commit,
        code_diff=code_diff,
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
    own = {"python": platform.python_version(), "forge": __version__}
    return own | origin.installed_versions(PACKAGES)


def _describe_code(package: Path) -> tuple[str, str]:
    """The commit, and the uncommitted changes of a checkout; for a wheel that was built from some,
    a line about it."""
    if commit := origin.git("rev-parse", "HEAD", package=package).strip():
        diff = origin.git("diff", "HEAD", "--", "forge", "experiments", package=package)
        return commit, diff[:MAX_DIFF_BYTES]
    built = origin.read_record(package)
    return built.commit, UNKNOWN_CHANGES if built.is_changed else ""
