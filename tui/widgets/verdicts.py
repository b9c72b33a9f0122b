"""A verdict or a kernel as text: status with a sign, times with units, reward.

A missing number is a dash: nothing is timed on a CPU.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from forge.views.rollouts import MENTIONED_QUEUE_S
from forge.views.text.numbers import NONE, factor, number, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.views.kernels import Kernel

SIGNS = {
    "correct": ("✔", "green"), "wrong": ("✘", "red"),
    "unjudgeable": ("?", "cyan"), "infra_error": ("?", "cyan"),
}  # fmt: skip
STOPPED = ("!", "yellow")
"""Every other status: there was no result to compare."""
MAX_WORDS = 20_000
"""Maximum characters of the judge's detail and feedback; the judge limits them to 2,000."""
WAITING = ("…", "")
"""A turn without a verdict yet."""


def verdict_word(status: str | None) -> Text:
    """`✔ correct`."""
    sign, style = WAITING if status is None else SIGNS.get(status, STOPPED)
    return Text(f"{sign} {printable(status or 'not judged yet')}", style=style)


def path_of_statuses(statuses: Sequence[str]) -> str:
    """`wrong → wrong → ✔ correct`."""
    return " → ".join("✔ correct" if each == "correct" else each for each in statuses)


def signed(value: float | None) -> str:
    """An advantage: `+0.31`."""
    return NONE if value is None else f"{value:+.3g}"


def microseconds(value: float | None, spread: float | None = None) -> str:
    """`104 us ±3`; in ms from ten thousand us."""
    if value is None:
        return NONE
    scale, unit = (1000.0, "ms") if value >= 10_000 else (1.0, "us")
    around = "" if spread is None else f" ±{spread / scale:.2g}"
    return f"{value / scale:.4g} {unit}{around}"


def speedup(row: Mapping[str, Any]) -> str:
    """`2.10x (at least 1.98x)`."""
    if row["speedup"] is None:
        return NONE
    low = "" if row["speedup_low"] is None else f" (at least {factor(row['speedup_low'])})"
    return f"{factor(row['speedup'])}{low}"


def times(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of (name, measurement); a single pair with the reason if nothing was timed."""
    if row["candidate_us"] is None:
        return [("times", "none" if row["device"] != "cpu" else "none: nothing is timed on a CPU")]
    return [
        ("speed-up", speedup(row)),
        ("candidate", microseconds(row["candidate_us"], row["candidate_spread_us"])),
        ("baseline", microseconds(row["baseline_us"], row["baseline_spread_us"])),
        ("GB/s", number(row["achieved_gbps"])),
        ("TFLOP/s", number(row["achieved_tflops"])),
        ("roofline", share(row["roofline_share"])),
    ]


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


def verdict_panel(row: dict[str, Any]) -> Text:
    """Everything about a turn except prompt and answer; the feedback comes last."""
    text = Text(overflow="fold")
    text.append(verdict_word(row["status"])).append(f" ({printable(row['reason'] or NONE)})\n")
    _section(text, "judge", _judge(row))
    _section(text, "phases", _phases(row))
    _section(text, "reward", _reward(row))
    _section(text, "sampled", _sampled(row))
    for heading, key in (("detail", "detail"), ("feedback to the model", "feedback")):
        if row[key]:
            text.append(f"\n{heading}\n", style="bold").append(
                f"{printable(row[key][:MAX_WORDS])}\n"
            )
    return text


def _judge(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        *times(row),
        ("launches", NONE if row["num_launches"] is None else str(row["num_launches"])),
        ("torch share", share(row["torch_share"])),
        ("device", row["device"] or NONE),
        ("sandbox", f"{row['isolation'] or NONE}, memory {row['caps'] or NONE}"),
        ("judged in", f"{row['judge_s']:.3f} s"),
    ]


def _phases(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Seconds from the request for a verdict, starting with the queue for a judge."""
    queue = {"queue": row["queued_s"]} if row["queued_s"] >= MENTIONED_QUEUE_S else {}
    return [(name, f"{s:.3f} s") for name, s in (queue | row["phase_s"]).items()]


def _reward(row: dict[str, Any]) -> list[tuple[str, str]]:
    terms = [(name, f"{value:+.3f}") for name, value in row["reward_terms"].items()]
    total = "not scored" if row["reward"] is None else f"{row['reward']:.3f}"
    trained = [f"{stage} step {step}, {age} old" for stage, step, age in row["trained_at"]]
    return [
        *terms,
        ("reward", total),
        ("return", number(row["discounted_return"])),
        ("advantage", signed(row["advantage"])),
        ("trained", "; ".join(trained) or "no"),
    ]


def _sampled(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = sorted({row["min_version"], row["max_version"]})
    return [
        ("policy", "–".join(str(version) for version in versions)),
        ("tokens", f"{row['num_completion_tokens']} after {row['num_prompt_tokens']}"),
        ("finish", "length: cut off" if row["is_truncated"] else row["finish"]),
        ("generated in", f"{row['generate_s']:.3f} s"),
    ]


def _section(text: Text, heading: str, pairs: list[tuple[str, str]]) -> None:
    if not pairs:
        return
    text.append(f"\n{heading}\n", style="bold")
    for name, value in pairs:
        text.append(f"  {printable(name):<13}").append(f"{printable(value)}\n")
