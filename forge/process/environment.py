# pyright: strict
"""The environment of a child: threads, devices, no hub access, no secrets."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge.process.devices import BLOCKING_VARIABLES, VISIBILITY_VARIABLES, visibility

SECRET_ENDINGS = (
    "TOKEN", "_KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PGPASSFILE", "CREDENTIALS",
    "DATABASE_URL", "_DSN",
)  # fmt: skip
"""Endings of names that hold secrets. A child that needs one gets it from its `env` table."""

THREADED = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")
"""Libraries with threads, by the name in their variable."""
SIOCGIFADDR = 0x8915
"""Linux: asks for the address of a network interface."""
RANKS_PARENT_VARIABLE = "FORGE_RANKS_PID"
"""Pid of the process that started this one as a rank."""


def child_env(
    *, threads: int, gpus: Sequence[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """This process's environment, without secrets and device variables, plus settings of a child:
    its `threads` for each of OpenMP, BLAS and tokenizers, UUIDs of the GPUs that it may see, and
    variables that replace any other."""
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
    root = Path(__file__).parents[2]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [] if root.name == "site-packages" else [str(root)]
    return os.pathsep.join(dict.fromkeys(own + [path for path in inherited if path]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """The place where ranks on several machines meet, and those that one machine has."""

    address: str
    """Address of rank 0's machine, as the others reach it."""
    port: int
    host: str
    """Address of this machine."""
    first: int
    """Its first rank."""
    num_here: int


def rank_envs(num_ranks: int, *, meeting: Rendezvous | None = None) -> list[dict[str, str]]:
    """The environment of each rank on this machine: ours, with torchrun's variables. Without
    `meeting`, this machine has all of them."""
    own = "127.0.0.1"
    here = meeting or Rendezvous(
        address=own, port=free_port(own), host=own, first=0, num_here=num_ranks
    )
    shared = {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(here.num_here),
        "MASTER_ADDR": here.address,
        "MASTER_PORT": str(here.port),
        RANKS_PARENT_VARIABLE: str(os.getpid()),
    }
    network = {} if meeting is None else _network_variables(meeting.host)
    return [
        network | os.environ | shared | {"RANK": str(here.first + rank), "LOCAL_RANK": str(rank)}
        for rank in range(here.num_here)
    ]


def _network_variables(host: str) -> dict[str, str]:
    """Variables that make gloo and NCCL listen at this IPv4 address of the machine; none for
    another address. By themselves they take that of its host name, often a loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == host:
                    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return {}


def free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
