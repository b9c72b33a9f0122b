# pyright: strict
"""Room of a cluster's nodes for the roles of a run. Called by `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.cluster.connection import Node
from forge.commands.cluster.labels import has_labels
from forge.commands.doctor.finding import Finding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from forge.config.schema import ClusterTable, Experiment


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
