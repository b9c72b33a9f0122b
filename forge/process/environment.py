# pyright: strict
"""The environment of a child: threads, devices, no hub access, no secrets."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import forge
from forge.process.devices import BLOCKING_VARIABLES, VISIBILITY_VARIABLES, visibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECRET_ENDINGS = (
    "TOKEN", "_KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PGPASSFILE", "CREDENTIALS",
    "DATABASE_URL", "_DSN",
)  # fmt: skip
"""Endings of names that hold secrets. A child that needs one gets it from its `env` table."""

THREADED = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")
"""Libraries with threads, by the name in their variable."""


RANKS_PARENT_VARIABLE = "FORGE_RANKS_PID"
"""Pid of the process that started this one as a rank."""


def child_env(
    *, threads: int, gpus: Sequence[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """This process's environment, without secrets and device variables, plus settings of a child.

    Args:
        threads: number for each of OpenMP, BLAS and tokenizers.
        gpus: UUIDs that the child may see; empty hides all.
        extra: variables that replace any other.
    """
    devices = VISIBILITY_VARIABLES | BLOCKING_VARIABLES
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in devices and not name.upper().endswith(SECRET_ENDINGS)
    }
    env |= {f"{library}_NUM_THREADS": str(threads) for library in THREADED}
    env |= {
        # Spinning threads take cores from other processes: measured 12 times slower.
        "OMP_WAIT_POLICY": "passive",
        "GGML_NO_BACKTRACE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Downloads happen before any child starts.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": python_path(),
        # `-m` would import from the working directory, where a user may have a random.py.
        "PYTHONSAFEPATH": "1",
    }
    return env | visibility(gpus) | dict(extra or {})


def python_path() -> str:
    """PYTHONPATH with this checkout, so that any working directory works; an install needs none."""
    root = Path(forge.__file__).parent.parent
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [] if root.name == "site-packages" else [str(root)]
    return os.pathsep.join(dict.fromkeys(own + [path for path in inherited if path]))


def rank_envs(num_ranks: int) -> list[dict[str, str]]:
    """The environment of each rank on this machine: ours, with torchrun's variables."""
    shared = {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        RANKS_PARENT_VARIABLE: str(os.getpid()),
    }
    return [
        os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(num_ranks)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
