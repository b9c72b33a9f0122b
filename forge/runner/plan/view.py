"""A plan on a terminal: tables of processes, cards, nodes and phases, reasons and warnings.

Called by `forge plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.views.text.numbers import NONE, UNKNOWN, minutes, parameters, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.runner.plan.nodes import NodePlan, NodeRole
    from forge.runner.plan.plan import Plan


def render(plan: Plan) -> RenderableType:
    """All tables, totals, reasons and notes."""
    params = "size unknown" if plan.params is None else f"{parameters(plan.params)} parameters"
    where = f"assumed: {plan.assumed}" if plan.assumed else f"{plan.cores} cores"
    parts: list[RenderableType] = [
        Text(f"{plan.name}: {params}, {where}", style="bold"), Text(), _processes(plan), Text(),
    ]  # fmt: skip
    if plan.cards:
        parts += [_cards(plan), Text()]
    if plan.nodes:
        parts += [_nodes(plan.nodes), Text()]
    parts += [_phases(plan), Text(), Text(f"disk: {size(plan.disk_bytes)}")]
    parts += [Text(f"· {reason}") for reason in plan.reasons]
    return Group(*parts, *(Text(f"! {note}", style="yellow") for note in plan.notes))


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _processes(plan: Plan) -> Table:
    table = _table("process", "device", "threads", "memory", "stages")
    index = {card.uuid: str(card.index) for card in plan.cards}
    for each in plan.processes:
        cards = [index[uuid] for uuid in each.device.split(", ") if uuid in index]
        device = f"GPU {', '.join(cards)}" if cards else each.device
        table.add_row(each.name, device, str(each.threads), size(each.memory_bytes), each.stages)
    table.add_row("total", "", "", size(plan.memory_bytes), style="bold")
    return table


def _cards(plan: Plan) -> Table:
    """Cards with the maximum memory of each role."""
    table = _table("GPU", "name", "roles")
    table.add_column("memory", justify="right")
    table.add_column("of", justify="right")
    for card in plan.cards:
        held = card.bytes_by_role
        parts = [f"{role} {size(held[role])}" if role in held else role for role in card.roles]
        total = size(sum(held.values())) if held else UNKNOWN
        row = (str(card.index), card.name, ", ".join(parts), total, size(card.memory_bytes))
        table.add_row(*row)
    return table


def _phases(plan: Plan) -> Table:
    """Phases with predicted seconds, and what they rest on."""
    table = _table("phase", "work")
    table.add_column("CPU-s", justify="right")
    table.add_column("wall", justify="right")
    table.add_column("by")
    for each in plan.phases:
        cpu_s = UNKNOWN if each.cpu_s is None else f"{each.cpu_s:.0f}"
        table.add_row(each.name, each.work, cpu_s, minutes(each.wall_s), each.basis)
    cpu_s = UNKNOWN if plan.cpu_s is None else f"{plan.cpu_s:.0f}"
    table.add_row("total", "", cpu_s, minutes(plan.wall_s), "", style="bold")
    return table


def _nodes(nodes: Sequence[NodePlan]) -> Table:
    """Nodes with their cards, what runs there, the memory that takes, idle cards."""
    table = _table("node", "labels", "GPUs", "roles", "memory of a GPU", "idle GPUs")
    for node in nodes:
        labels = ", ".join(f"{key}={value}" for key, value in node.labels.items())
        parts = [f"{each.role} {size(each.bytes_each)}" for each in node.roles if each.bytes_each]
        table.add_row(
            node.name, labels or NONE, f"{node.num_gpus} x {node.gpu}",
            ", ".join(map(_role_text, node.roles)) or NONE,
            f"{', '.join(parts)} of {size(node.memory_bytes)}" if parts else NONE,
            spans(node.idle) or NONE,
        )  # fmt: skip
    return table


def _role_text(each: NodeRole) -> str:
    """`serve-0 to serve-7 on GPU 0-7`."""
    names = f"{each.role}-{each.first}" if each.role != "train" else "trainer"
    if each.role != "train" and each.count > 1:
        names += f" to {each.role}-{each.first + each.count - 1}"
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
