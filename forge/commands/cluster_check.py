# pyright: strict
"""`forge cluster check`: nodes of a Ray cluster, and whether each can work for a run.

Each node but this one gets a host for a moment, which reports its installation, clock, cards and
bandwidth. An error means that the node's children would not start, or would not be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from forge.cluster.cluster import open_cluster
from forge.cluster.connection import Node
from forge.cluster.order import source_digest
from forge.cluster.survey import JUDGES_NEED, RANKS_NEED
from forge.commands.doctor.finding import Finding, error, warning
from forge.errors import ConfigError, pip_install
from forge.process.sockets import open_socket_dir

if TYPE_CHECKING:
    from forge.config.schema import ClusterTable, Experiment

MAX_SKEW_S = 2.0
"""Difference of two clocks that confuses nobody who reads logs of both."""
LEAST_MEGABYTES_S = 50.0
"""Bandwidth below which a publish of a 7 B model takes five minutes."""


async def survey_cluster(experiment: Experiment) -> list[dict[str, Any]]:
    """Facts about each node. Raises ConfigError without `cluster.address`, MachineError."""
    if experiment.cluster.address is None:
        raise ConfigError("cluster.address: absent; set it to check the nodes of a cluster")
    with TemporaryDirectory() as logs, open_socket_dir() as folder:
        async with open_cluster(
            experiment.cluster, run="check", socket_dir=folder, log_dir=Path(logs)
        ) as cluster:
            return await cluster.survey()


def find_all(experiment: Experiment, nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings about every node, and about the cluster as a whole."""
    findings = [each for facts in nodes for each in _find(experiment, facts)]
    num_usable = sum(bool(facts.get("host")) for facts in nodes)
    if not num_usable:
        fix = '"ray start --address=HOST:PORT" on another machine joins it'
        findings.append(error("nodes", "no node besides this machine", fix=fix))
    return findings


def _find(experiment: Experiment, facts: Mapping[str, Any]) -> Iterator[Finding]:
    node = Node(**facts["node"])
    if node.is_here:
        yield Finding(name=node.ip, found=f"{node}: the supervisor, the store and rank 0")
        return
    if "error" in facts:
        fix = "install forge's commit in the Python that runs Ray there"
        yield error(node.ip, f"{node}: {facts['error']}", fix=fix)
        return
    faults = list(_faults(experiment, facts))
    yield from (
        kind(node.ip, f"{node}: {found}", fix=fix)
        for kind, found, fix in faults
    )  # fmt: skip
    if not faults:
        yield Finding(name=node.ip, found=f"{node}: {facts['megabytes_s']:.0f} MB/s from here")


def _faults(experiment: Experiment, facts: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    if facts["sources"] != source_digest():
        found = f"other sources of forge: {facts['sources']}, here {source_digest()}"
        yield error, found, f"install the same commit in {facts['executable']} there"
    if not facts["is_reachable"]:
        found = f"its port {facts['port']} cannot be reached from here"
        yield error, found, "open all TCP ports between the nodes, as Ray needs too"
    yield from _absent(experiment.cluster, facts["missing"])
    if abs(facts["skew_s"]) > MAX_SKEW_S:
        found = f"its clock differs by {facts['skew_s']:+.1f} s"
        yield warning, found, "timedatectl set-ntp true there"
    if facts["megabytes_s"] < LEAST_MEGABYTES_S and experiment.cluster.serve:
        found = f"{facts['megabytes_s']:.0f} MB/s from here, which slows each publish"
        yield warning, found, "a faster network, or engines on nodes near this machine"


def _absent(table: ClusterTable, missing: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    """An error for each role whose packages a node lacks."""
    needed = (
        (table.judges, "judges", JUDGES_NEED, "judge"),
        (table.train_nodes, "ranks", RANKS_NEED, "run"),
    )
    for is_wanted, role, packages, extra in needed:
        absent = [name for name in packages if name in missing]
        if is_wanted and absent:
            yield error, f"no {', '.join(absent)} for {role}", pip_install(extra)
