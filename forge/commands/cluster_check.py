"""`forge cluster check`: nodes of a Ray cluster, and whether each can work for a run.

Each node but this one gets a host for a moment, which reports its installation, clock, cards and
bandwidth. An error means that the run could not start, or that it could not use a node.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from forge.cluster.cluster import open_cluster
from forge.cluster.nodes import NO_FORGE_LINE, RANKS_NEED, Node
from forge.commands.doctor.probe import Finding, error, warning
from forge.errors import ConfigError, pip_install
from forge.origin import installed_versions, source_digest
from forge.process.sockets import open_socket_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from forge.config.schema import ClusterTable, Experiment


JUDGE_PACKAGES = ("torch", "triton")
"""Packages that each judge needs, and on whose versions verdicts depend."""
MAX_SKEW_S = 2.0
"""Difference of two clocks with which the logs of both can be read together."""
LEAST_MEGABYTES_S = 50.0
"""Bandwidth below which a publish of a 7 B model takes five minutes."""
LEAST_STORE_BYTES = 512 << 20
"""Object store below which most of the weights go through a disk."""
MAX_USED_BYTES = 2 << 30
"""Memory of a card that a display or a daemon may use."""

_WANTED = re.compile(r"(?P<not>!?)(?:in\((?P<several>.*)\)|(?P<one>.*))")


async def survey_cluster(experiment: Experiment) -> list[dict[str, Any]]:
    """Facts about each node. Raises ConfigError without `cluster.address`, MachineError."""
    if experiment.cluster.address is None:
        raise ConfigError("cluster.address: absent; set it to check the nodes of a cluster")
    python = experiment.serve.python if experiment.cluster.serve else None
    packages = [name for _, names in _packages(experiment).values() for name in names]
    needs = {"packages": list(dict.fromkeys(packages)), "paths": [str(python)] if python else []}
    with TemporaryDirectory() as logs, open_socket_dir() as folder:
        async with open_cluster(
            experiment.cluster, run="check", socket_dir=folder, log_dir=Path(logs)
        ) as cluster:
            return await cluster.survey(needs)


def _packages(experiment: Experiment) -> dict[str, tuple[str, Sequence[str]]]:
    """The extra and the packages that a node needs, by role."""
    found: dict[str, tuple[str, Sequence[str]]] = {}
    if experiment.cluster.judges:
        found["judges"] = "judge", [*JUDGE_PACKAGES, *experiment.judge.site_packages]
    if experiment.cluster.train_nodes:
        found["ranks"] = "train", RANKS_NEED
    return found


def find_all(experiment: Experiment, nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings about every node, and about the cluster as a whole."""
    findings = [each for facts in nodes for each in _find(experiment, facts)]
    if any("error" not in facts and not facts["node"]["is_here"] for facts in nodes):
        return [*findings, *find_room(experiment, nodes)]
    fix = '"ray start --address=HOST:PORT" on another machine joins it'
    return [*findings, error("nodes", "no node besides this machine can be used", fix=fix)]


def _find(experiment: Experiment, facts: Mapping[str, Any]) -> Iterator[Finding]:
    node = Node(**facts["node"])
    if node.is_here:
        yield Finding(name=node.ip, found=f"{node}: the supervisor, the store and rank 0")
        for kind, found, fix in _store_faults(experiment, node):
            yield kind(node.ip, f"{node}: {found}", fix=fix)
        return
    if "error" in facts:
        fix = '"ray status" shows whether the node lives; "ray start" there joins it again'
        if facts["error"] == NO_FORGE_LINE:
            fix = "install forge's commit in the Python that runs Ray there"
        yield error(node.ip, f"{node}: {facts['error']}", fix=fix)
        return
    faults = list(_faults(experiment, facts))
    yield from (kind(facts["host"], f"{node}: {found}", fix=fix) for kind, found, fix in faults)
    if not faults:
        yield Finding(name=facts["host"], found=f"{node}: {_describe(facts)}")


def _describe(facts: Mapping[str, Any]) -> str:
    """Facts that were compared, in one line."""
    cards = Counter(card["name"] for card in facts["cards"])
    parts = [f"{number} x {name}" for name, number in cards.items()]
    parts += [f"{name} {found}" for name, found in facts["versions"].items()]
    parts += [f"clock {facts['skew_s']:+.1f} s", f"{facts['megabytes_s']:.0f} MB/s from here"]
    return ", ".join(parts)


def _faults(experiment: Experiment, facts: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    python = facts["executable"]
    if facts["sources"] != source_digest():
        found = f"other sources of forge: {facts['sources']}, here {source_digest()}"
        yield error, found, f"install the same commit in {python} there"
    if not facts["is_reachable"]:
        found = f"its port {facts['port']} cannot be reached from here"
        yield error, found, "open all TCP ports between the nodes, as Ray needs too"
    yield from _package_faults(experiment, facts)
    for path in facts["missing"]:
        yield error, f"no {path}, which serve.python names", "the same path on each node"
    yield from _card_faults(facts)
    yield from _store_faults(experiment, Node(**facts["node"]))
    if facts["nice"] > 0:
        found = f"children have nice {facts['nice']}: everything else on that node comes first"
        yield warning, found, "RAY_worker_niceness=0 in the environment of ray start there"
    if abs(facts["skew_s"]) > MAX_SKEW_S:
        found = f"its clock differs by {facts['skew_s']:+.1f} s"
        yield warning, found, "timedatectl set-ntp true there"
    if facts["megabytes_s"] < LEAST_MEGABYTES_S and experiment.cluster.serve:
        found = f"{facts['megabytes_s']:.0f} MB/s from here, which slows each publish"
        yield warning, found, "a faster network, or engines on nodes near this machine"


def _store_faults(experiment: Experiment, node: Node) -> Iterator[tuple[Any, str, str]]:
    sends = experiment.cluster.serve or experiment.cluster.train_nodes
    if sends and node.store_bytes < LEAST_STORE_BYTES:
        found = f"an object store of {node.store_bytes / 1e6:.0f} MB: weights go through its disk"
        fix = "ray start --object-store-memory=2000000000 there; of a container: --shm-size=4g"
        yield warning, found, fix


def _package_faults(
    experiment: Experiment, facts: Mapping[str, Any]
) -> Iterator[tuple[Any, str, str]]:
    there = facts["versions"]
    for role, (extra, packages) in _packages(experiment).items():
        if missing := [name for name in packages if name not in there]:
            is_ours = not set(missing).isdisjoint((*JUDGE_PACKAGES, *RANKS_NEED))
            command = pip_install(extra) if is_ours else f"pip install {' '.join(missing)}"
            found = f"no {', '.join(missing)} for {role} in {facts['executable']}"
            yield error, found, f"{command} there"
    here = installed_versions(there)
    other = [
        f"{name} {there[name]}" for name in there if name in here and here[name] != there[name]
    ]
    if other:
        own = ", ".join(f"{name} {here[name]}" for name in there if name in here)
        yield warning, f"{', '.join(other)}; here {own}", "pip install -c constraints.txt on both"


def _card_faults(facts: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    cards, num_given = facts["cards"], int(facts["node"]["gpus"])
    if len(cards) < num_given:
        found = f"Ray has {num_given} GPUs to give, and {len(cards)} answer"
        yield error, found, f"nvidia-smi there; or ray start --num-gpus={len(cards)}"
    for number, card in enumerate(cards):
        if card["used_bytes"] > MAX_USED_BYTES:
            found = f"{card['used_bytes'] / 1e9:.1f} GB of its GPU {number} are in use"
            yield warning, found, "nvidia-smi there shows by which process"


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True if a node with `labels` may have a child that wants these. A label that is absent is
    none of the named values."""
    return all(_fits(labels.get(key), value) for key, value in wanted.items())


def _fits(found: str | None, wanted: str) -> bool:
    match = _WANTED.fullmatch(wanted)
    assert match is not None
    several = match["several"]
    values = [match["one"]] if several is None else [each.strip() for each in several.split(",")]
    return (found in values) is not bool(match["not"])


def find_room(experiment: Experiment, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Room of the nodes for each role: engines need it at the start, judges now or later."""
    table, serve = experiment.cluster, experiment.serve
    living = [Node(**facts["node"]) for facts in nodes if "error" not in facts]
    others = [node for node in living if not node.is_here]
    room = Room(others, children_a_gpu=1 + table.share_gpus)
    if table.train_nodes:
        yield _find_ranks(table, others)
    if table.serve:
        each = serve.tensor_parallel if table.serve_on == "gpu" else serve.threads
        # Engines that may be anywhere leave the judges' nodes to judges as far as they can.
        found = room.take(
            serve.replicas, each, table.serve_on, table.serve_labels, spared=table.judge_labels
        )
        size = each / room.children_of(table.serve_on)
        text = _room_text(found, serve.replicas, size, table.serve_on, table.serve_labels)
        fix = "more nodes, or cluster.serve_labels that they have"
        is_error = found < serve.replicas
        yield error("engines", text, fix=fix) if is_error else Finding(name="engines", found=text)
    if table.judges:
        found = room.take(table.judges, 1, table.judge_on, table.judge_labels)
        size = 1 / room.children_of(table.judge_on)
        text = _room_text(found, table.judges, size, table.judge_on, table.judge_labels)
        fix = "more nodes, or cluster.judge_labels that they have"
        if found == table.judges:
            yield Finding(name="judges", found=text)
        elif found:
            yield warning("judges", f"{text}; the others start when nodes join", fix=fix)
        else:
            yield error("judges", text, fix=fix)


def _find_ranks(table: ClusterTable, nodes: Sequence[Node]) -> Finding:
    """Nodes for ranks of the trainer: each takes as many as this machine has."""
    found = sum(has_labels(node.labels, table.train_labels) for node in nodes)
    labels = ", ".join(f"{key}={value}" for key, value in table.train_labels.items())
    text = f"{found} nodes{f' with {labels}' if labels else ''}, {table.train_nodes} wanted"
    if found < table.train_nodes:
        fix = "more nodes, or cluster.train_labels that they have"
        return error("ranks", text, fix=fix)
    return Finding(name="ranks", found=text)


class Room:
    """Free cores and cards of nodes."""

    def __init__(self, nodes: Iterable[Node], *, children_a_gpu: int = 1) -> None:
        self._nodes = list(nodes)
        self._children_a_gpu = children_a_gpu
        self._free = {
            **{(node.node_id, "cpu"): int(node.cpus) for node in self._nodes},
            **{(node.node_id, "gpu"): int(node.gpus * children_a_gpu) for node in self._nodes},
        }

    def children_of(self, kind: str) -> int:
        """Children that may have one core, or one card."""
        return self._children_a_gpu if kind == "gpu" else 1

    def take(
        self, wanted: int, each: int, kind: str, labels: Mapping[str, str],
        *, spared: Mapping[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Takes room for children that need `each` cores or cards of one node; returns their
        number, at most `wanted`. Nodes with the labels `spared` are taken last."""
        num_placed = 0
        nodes = [node for node in self._nodes if has_labels(node.labels, labels)]
        for node in sorted(nodes, key=lambda node: has_labels(node.labels, spared or {})):
            fits = min(wanted - num_placed, self._free[node.node_id, kind] // each)
            self._free[node.node_id, kind] -= fits * each
            num_placed += fits
        return num_placed


def _room_text(found: int, wanted: int, each: float, kind: str, labels: Mapping[str, str]) -> str:
    needs = [f"{each:g} {kind.upper()} each", *(f"{key}={value}" for key, value in labels.items())]
    return f"{found} of {wanted} find room ({', '.join(needs)})"
