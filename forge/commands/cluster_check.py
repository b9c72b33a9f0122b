"""`forge cluster check`: nodes of a Ray cluster, and whether each can work for a run.

Each node but this one gets a host for a moment, which reports its installation, clock, cards and
bandwidth. An error means that the run could not start, or that it could not use a node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forge.cluster.cluster import open_cluster
from forge.cluster.nodes import NO_FORGE_LINE, RANKS_NEED, Node
from forge.commands.doctor.probe import Finding, error, warning
from forge.config.schema import Experiment
from forge.errors import ConfigError, pip_install
from forge.origin import installed_versions, source_digest
from forge.process.sockets import open_socket_dir

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
    sends = experiment.cluster.serve or experiment.cluster.train_nodes
    store = (
        sends and node.store_bytes < LEAST_STORE_BYTES, warning,
        f"an object store of {node.store_bytes / 1e6:.0f} MB: weights go through its disk",
        "ray start --object-store-memory=2000000000 there; of a container: --shm-size=4g",
    )  # fmt: skip
    if node.is_here:
        name, shown, rows = node.ip, "the supervisor, the store and rank 0", [store]
        yield Finding(name=name, found=f"{node}: {shown}")
    elif "error" in facts:
        fix = '"ray status" shows whether the node lives; "ray start" there joins it again'
        if facts["error"] == NO_FORGE_LINE:
            fix = "install forge's commit in the Python that runs Ray there"
        name, rows = node.ip, [(True, error, facts["error"], fix)]
    else:
        name, rows = facts["host"], [*_faults(experiment, facts), store]
    faults = [row[1:] for row in rows if row[0]]
    yield from (kind(name, f"{node}: {found}", fix=fix) for kind, found, fix in faults)
    if not faults and not node.is_here:
        yield Finding(name=name, found=f"{node}: {_describe(facts)}")


def _describe(facts: Mapping[str, Any]) -> str:
    cards = Counter(card["name"] for card in facts["cards"])
    parts = [f"{number} x {name}" for name, number in cards.items()]
    parts += [f"{name} {found}" for name, found in facts["versions"].items()]
    parts += [f"clock {facts['skew_s']:+.1f} s", f"{facts['megabytes_s']:.0f} MB/s from here"]
    return ", ".join(parts)


Row = tuple[object, Callable[..., Finding], str, str]
"""True if the fault is there, the kind of its finding, what was found, and the fix."""


def _faults(experiment: Experiment, facts: Mapping[str, Any]) -> Iterator[Row]:
    python, there = facts["executable"], facts["versions"]
    here, rate = installed_versions(there), facts["megabytes_s"]
    other = [f"{n} {there[n]}" for n in there if n in here and here[n] != there[n]]
    own = ", ".join(f"{name} {here[name]}" for name in there if name in here)
    cards, num_given = facts["cards"], int(facts["node"]["gpus"])
    yield (
        facts["sources"] != source_digest(), error,
        f"other sources of forge: {facts['sources']}, here {source_digest()}",
        f"install the same commit in {python} there",
    )  # fmt: skip
    yield (
        not facts["is_reachable"], error,
        f"its port {facts['port']} cannot be reached from here",
        "open all TCP ports between the nodes, as Ray needs too",
    )  # fmt: skip
    for role, (extra, packages) in _packages(experiment).items():
        missing = [name for name in packages if name not in there]
        is_ours = not set(missing).isdisjoint((*JUDGE_PACKAGES, *RANKS_NEED))
        command = pip_install(extra) if is_ours else f"pip install {' '.join(missing)}"
        text = f"no {', '.join(missing)} for {role} in {python}"
        yield missing, error, text, f"{command} there"
    yield (
        other,
        warning,
        f"{', '.join(other)}; here {own}",
        "pip install -c constraints.txt on both",
    )
    for path in facts["missing"]:
        yield True, error, f"no {path}, which serve.python names", "the same path on each node"
    yield (
        len(cards) < num_given, error,
        f"Ray has {num_given} GPUs to give, and {len(cards)} answer",
        f"nvidia-smi there; or ray start --num-gpus={len(cards)}",
    )  # fmt: skip
    for number, card in enumerate(cards):
        text = f"{card['used_bytes'] / 1e9:.1f} GB of its GPU {number} are in use"
        is_used = card["used_bytes"] > MAX_USED_BYTES
        yield is_used, warning, text, "nvidia-smi there shows by which process"
    yield (
        facts["nice"] > 0, warning,
        f"children have nice {facts['nice']}: everything else on that node comes first",
        "RAY_worker_niceness=0 in the environment of ray start there",
    )  # fmt: skip
    yield (
        abs(facts["skew_s"]) > MAX_SKEW_S, warning,
        f"its clock differs by {facts['skew_s']:+.1f} s", "timedatectl set-ntp true there",
    )  # fmt: skip
    yield (
        rate < LEAST_MEGABYTES_S and experiment.cluster.serve, warning,
        f"{rate:.0f} MB/s from here, which slows each publish",
        "a faster network, or engines on nodes near this machine",
    )  # fmt: skip


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
    """Room of the nodes for each role: engines need it at the start, judges now or later; ranks of
    a trainer take a node each. Engines that may be anywhere leave the judges' nodes to judges."""
    table, serve = experiment.cluster, experiment.serve
    living = [Node(**facts["node"]) for facts in nodes if "error" not in facts]
    others = [node for node in living if not node.is_here]
    children = {"cpu": 1, "gpu": 1 + table.share_gpus}
    free = {
        (node.node_id, kind): int(size * children[kind])
        for node in others
        for kind, size in (("cpu", node.cpus), ("gpu", node.gpus))
    }
    if table.train_nodes:
        labels = table.train_labels
        found = sum(has_labels(node.labels, labels) for node in others)
        text = f"{found} nodes{' with ' if labels else ''}{', '.join(_listed(labels))}"
        yield _room("ranks", found, table.train_nodes, f"{text}, {table.train_nodes} wanted")
    size = serve.tensor_parallel if table.serve_on == "gpu" else serve.threads
    for role, wanted, each, kind, labels, spared in (
        ("engines", serve.replicas if table.serve else 0, size, table.serve_on, table.serve_labels,
         table.judge_labels),
        ("judges", table.judges, 1, table.judge_on, table.judge_labels, {}),
    ):  # fmt: skip
        found, fitting = 0, [node for node in others if has_labels(node.labels, labels)]
        for node in sorted(fitting, key=lambda node: has_labels(node.labels, spared)):
            num = min(wanted - found, free[node.node_id, kind] // each)
            free[node.node_id, kind] -= num * each
            found += num
        needs = [f"{each / children[kind]:g} {kind.upper()} each", *_listed(labels)]
        if wanted:
            text = f"{found} of {wanted} find room ({', '.join(needs)})"
            yield _room(role, found, wanted, text)


def _listed(labels: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in labels.items()]


def _room(role: str, found: int, wanted: int, text: str) -> Finding:
    key = {"ranks": "train_labels", "engines": "serve_labels", "judges": "judge_labels"}[role]
    fix = f"more nodes, or cluster.{key} that they have"
    if found >= wanted:
        return Finding(name=role, found=text)
    if found and role == "judges":
        return warning(role, f"{text}; the others start when nodes join", fix=fix)
    return error(role, text, fix=fix)
