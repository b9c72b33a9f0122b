"""Table of the nodes of a plan. Called by `plan.view`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from forge.views.text.numbers import NONE, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.runner.plan.nodes.layout import NodePlan, NodeRole


def nodes_table(nodes: Sequence[NodePlan]) -> Table:
    """A row for each node: its cards, what runs there, the memory that takes, idle cards."""
    table = Table("node", "labels", "GPUs", "roles", "memory of a GPU", "idle GPUs",
                  box=None, pad_edge=False)  # fmt: skip
    for node in nodes:
        labels = ", ".join(f"{key}={value}" for key, value in node.labels.items())
        parts = [
            f"{each.role} {size(each.bytes_each)}" for each in node.roles if each.bytes_each
        ]  # fmt: skip
        table.add_row(
            node.name,
            labels or NONE,
            f"{node.num_gpus} x {node.gpu}",
            ", ".join(map(role_text, node.roles)) or NONE,
            f"{', '.join(parts)} of {size(node.memory_bytes)}" if parts else NONE,
            spans(node.idle) or NONE,
        )
    return table


def role_text(each: NodeRole) -> str:
    """`serve-0 to serve-7 on GPU 0-7`."""
    last = each.first + each.count - 1
    names = f"{each.role}-{each.first}" if each.role != "train" else "trainer"
    if each.role != "train" and each.count > 1:
        names += f" to {each.role}-{last}"
    return f"{names} on {f'GPU {spans(each.gpus)}' if each.gpus else 'the CPU'}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: `0-3, 6`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
