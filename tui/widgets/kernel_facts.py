"""Origin, times and reward of one kernel, as text."""

# pyright: strict
from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from forge.views.text.numbers import NONE, number
from forge.views.text.terminal import printable
from tui.widgets.verdicts import microseconds, times

if TYPE_CHECKING:
    from forge.views.run.kernels import Kernel


def kernel_facts(kernel: Kernel) -> Text:
    """Origin and speed of a kernel."""
    row = kernel.turn
    at = datetime.fromtimestamp(row["recorded_at"], UTC).strftime("%Y-%m-%d %H:%M")
    stage = (
        NONE if row["stage_name"] is None else f"{printable(row['stage_name'])} step {row['step']}"
    )
    text = Text(overflow="fold")
    text.append(f"{printable(row['problem_id'])}\n", style="bold")
    text.append(
        f"found by {printable(kernel.run)}, {row['turn_id']} ({row['purpose'] or NONE}), {stage}, "
        f"policy {row['policy_version']}, {at} UTC\n"
    )
    pairs = [*times(row), ("launches", str(row["num_launches"])), ("device", row["device"])]
    text.append(" · ".join(f"{name} {printable(value)}" for name, value in pairs if value != NONE))
    text.append(f" · reward {number(row['reward'])}")
    if len(kernel.times) > 1:
        measured = [time["candidate_us"] for time in kernel.times]
        low, high = microseconds(min(measured)), microseconds(max(measured))
        text.append(f"\nmeasured {len(measured)} times: {low} to {high}")
    if kernel.num_found_again > 1:
        text.append(f"\nthe same code was found {kernel.num_found_again} times")
    return text.append("\n")
