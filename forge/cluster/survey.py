# pyright: strict
"""Facts about every node of a cluster, for `forge cluster check`, and errors of hosts in one line.

Called by the broker. Each node but this one gets a host for a moment.
"""

from __future__ import annotations

import platform
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from forge.cluster.connection import SURVEY_S, Node, cause_line, is_open, list_nodes
from forge.origin import installed_versions, source_digest

MEASURED_BYTES = 32 << 20
"""Bytes that are sent to a node to measure its bandwidth: a second at 256 Mbit/s."""
RANKS_NEED = ("torch", "transformers", "trl", "peft", "datasets")
"""Packages that ranks of a trainer need on their node."""
NO_FORGE = "No module named 'forge"
"""Part of Ray's message about a node whose Python cannot import forge."""
NO_FORGE_LINE = "its node has no forge: install the same commit there, in the Python that runs Ray"


def node_facts(ip: str, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Facts about this node, for the check of its installation."""
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
    """Each living node, this one first, and what a host there reports.

    Args:
        new_host: makes a host on a node with the given labels.
        needs: packages and paths that are looked for on each node.
    """
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
    """The reason why a host is gone, in one line."""
    if NO_FORGE in str(error):
        return NO_FORGE_LINE
    return f"its host is gone: {cause_line(error)}"
