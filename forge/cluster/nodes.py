"""The connection to a Ray cluster, with one-line errors, its nodes, and facts about each.

Called in the broker and, through `forge cluster check`, in its process. For a survey each node but
this one gets a host for a moment. Ray is imported here only.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import numpy as np

from forge.errors import ConfigError, MachineError, pip_install
from forge.origin import installed_versions, source_digest

CONNECT_TIMEOUT_S = 5.0
SURVEY_S = 60.0
"""Maximum time until a node has reported, its first import of forge included."""
LONGEST_MESSAGE = 400
MEASURED_BYTES = 32 << 20
"""Bytes that are sent to a node to measure its bandwidth: a second at 256 Mbit/s."""
RANKS_NEED = ("torch", "transformers", "trl", "peft", "datasets")
NO_FORGE = "No module named 'forge"
"""Part of Ray's message about a node whose Python cannot import forge."""
NO_FORGE_LINE = "its node has no forge: install the same commit there, in the Python that runs Ray"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node_id: str
    ip: str
    is_here: bool
    """True for the supervisor's node, which has no hosts: its GPUs are placed by [devices]."""
    cpus: float
    gpus: float
    labels: dict[str, str]
    store_bytes: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        own = {
            key: value for key, value in self.labels.items() if not key.startswith("ray.io/node")
        }
        labels = "".join(f", {key}={value}" for key, value in sorted(own.items()))
        where = ", this machine" if self.is_here else ""
        return f"{self.ip} ({self.cpus:g} CPU, {self.gpus:g} GPU{labels}{where})"


def import_ray() -> Any:
    """The package ray. Raises MachineError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MachineError(
            f"cluster.address needs ray, which is not installed ({error}): {pip_install('ray')}"
        ) from error


def connect(address: str) -> Any:
    """Connects this process to the cluster; returns the package. Raises MachineError."""
    ray = import_ray()
    _require_listener(address)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="WARNING", namespace="forge")
    except Exception as error:  # Ray raises what its layers raise
        raise MachineError(_explain(address, error)) from error
    return ray


def _require_listener(address: str) -> None:
    """Raises MachineError if no process listens there: Ray itself would try for a minute."""
    if address == "auto":
        return
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f'cluster.address: found "{address}"; {error}') from error
    try:
        socket.create_connection((parts.hostname or "", port or 0), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise MachineError(
            f"cluster.address: no node answers at {address}: {error.strerror or error}; "
            '"ray start --head" on that machine starts a cluster'
        ) from error


def is_open(host: str, port: int) -> bool:
    """True if somebody listens there and this machine reaches it."""
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _explain(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        found = re.sub(r"^.*?(?=[Vv]ersion mismatch)", "", text)
        return f"cluster.address: {found[:LONGEST_MESSAGE]}; install equal versions on all nodes"
    if isinstance(error, ConnectionError) and address == "auto":
        return (
            'cluster.address = "auto": this machine is no node of a Ray cluster; '
            '"ray start --head" makes it the head, "ray start --address=HOST:PORT" joins another'
        )
    return f"cluster.address: {address}: {type(error).__name__}: {text[:LONGEST_MESSAGE]}"


def list_nodes(ray: Any) -> list[Node]:
    here = str(ray.get_runtime_context().get_node_id())
    nodes = [
        Node(
            node_id=str(each["NodeID"]),
            ip=str(each["NodeManagerAddress"]),
            is_here=each["NodeID"] == here,
            cpus=float(each["Resources"].get("CPU", 0)),
            gpus=float(each["Resources"].get("GPU", 0)),
            labels=dict(each.get("Labels") or {}),
            store_bytes=float(each["Resources"].get("object_store_memory", 0)),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]
    return sorted(nodes, key=lambda node: (not node.is_here, node.ip, node.node_id))


def cause_line(error: Exception) -> str:
    """The cause in one line: Ray's messages have the ids first and the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def node_facts(ip: str, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {
        "ip": ip,
        "host": socket.gethostname(),
        "sources": source_digest(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "time": time.time(),
        "versions": installed_versions(needs["packages"]),
        "missing": [path for path in needs["paths"] if not Path(path).exists()],
    }


async def survey(
    ray: Any, new_host: Callable[[dict[str, str]], Any], needs: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Each living node, this one first, and what a host there reports. `new_host`: makes a host on
    a node with the given labels. `needs`: packages and paths that are looked for on each node."""
    nodes = list_nodes(ray)
    found = [{"node": node.to_json()} for node in nodes]

    async def ask(facts: dict[str, Any], node: Node) -> None:
        host = new_host({"ray.io/node-id": node.node_id})
        try:
            with anyio.fail_after(SURVEY_S):
                facts |= await _ask(ray, host, node, needs)
        except TimeoutError:
            facts["error"] = f"it did not answer within {SURVEY_S:.0f} s"
        except ray.exceptions.RayError as error:
            facts["error"] = explain(error)
        finally:
            ray.kill(host)

    async with anyio.create_task_group() as tasks:
        for facts, node in zip(found, nodes, strict=True):
            if not node.is_here:
                tasks.start_soon(ask, facts, node)
    return found


async def _ask(
    ray: Any, host: Any, node: Node, needs: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    await host.ready.remote()  # so that its start is no part of the times
    before = time.time()
    facts = await host.describe.remote(needs)
    skew_s = facts["time"] - (before + time.time()) / 2
    ref = ray.put(np.zeros(MEASURED_BYTES, np.uint8))
    began = time.monotonic()
    await host.receive.remote([ref])
    megabytes_s = MEASURED_BYTES / 1e6 / (time.monotonic() - began)
    is_reachable = await anyio.to_thread.run_sync(is_open, node.ip, facts["port"])
    await host.stop.remote()
    return {
        **facts, "skew_s": skew_s, "megabytes_s": megabytes_s, "is_reachable": is_reachable,
    }  # fmt: skip


def explain(error: Exception) -> str:
    if NO_FORGE in str(error):
        return NO_FORGE_LINE
    return f"its host is gone: {cause_line(error)}"
