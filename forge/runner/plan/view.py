"""A plan on a terminal: tables of processes, cards and phases, reasons and warnings.

Called by `forge plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.runner.plan.nodes.view import nodes_table
from forge.views.text.numbers import minutes, parameters, size

if TYPE_CHECKING:
    from forge.runner.plan.plan import Plan


def render(plan: Plan) -> RenderableType:
    """All tables, totals, reasons and notes."""
    params = "size unknown" if plan.params is None else f"{parameters(plan.params)} parameters"
    where = f"assumed: {plan.assumed}" if plan.assumed else f"{plan.cores} cores"
    head = Text(f"{plan.name}: {params}, {where}", style="bold")
    notes = [Text(f"! {note}", style="yellow") for note in plan.notes]
    disk = Text(f"disk: {size(plan.disk_bytes)}")
    on_gpus = [cards(plan), Text()] if plan.cards else []
    on_gpus += [nodes_table(plan.nodes), Text()] if plan.nodes else []
    reasons = [Text(f"· {reason}") for reason in plan.reasons]
    return Group(
        head, Text(), processes(plan), Text(), *on_gpus, phases(plan), Text(), disk, *reasons,
        *notes,
    )  # fmt: skip


def processes(plan: Plan) -> Table:
    """Table of processes with their devices."""
    table = Table("process", "device", "threads", "memory", "stages", box=None, pad_edge=False)
    index = {card.uuid: str(card.index) for card in plan.cards}
    for each in plan.processes:
        cards = [index[uuid] for uuid in each.device.split(", ") if uuid in index]
        device = f"GPU {', '.join(cards)}" if cards else each.device
        table.add_row(each.name, device, str(each.threads), size(each.memory_bytes), each.stages)
    table.add_row("total", "", "", size(plan.memory_bytes), style="bold")
    return table


def cards(plan: Plan) -> Table:
    """Table of cards with the maximum memory of each role."""
    table = Table("GPU", "name", "roles", box=None, pad_edge=False)
    table.add_column("memory", justify="right")
    table.add_column("of", justify="right")
    for card in plan.cards:
        parts = ", ".join(
            f"{role} {size(card.bytes_by_role[role])}" if role in card.bytes_by_role else role
            for role in card.roles
        )
        total = size(sum(card.bytes_by_role.values())) if card.bytes_by_role else "?"
        table.add_row(str(card.index), card.name, parts, total, size(card.memory_bytes))
    return table


def phases(plan: Plan) -> Table:
    """Table of phases with predicted seconds."""
    table = Table("phase", "work", box=None, pad_edge=False)
    table.add_column("CPU-s", justify="right")
    table.add_column("wall", justify="right")
    for each in plan.phases:
        table.add_row(each.name, each.work, seconds(each.cpu_s), minutes(each.wall_s))
    table.add_row("total", "", seconds(plan.cpu_s), minutes(plan.wall_s), style="bold")
    return table


def seconds(value: float | None) -> str:
    """Whole seconds; `?` if unknown."""
    return "?" if value is None else f"{value:.0f}"
