"""Steps of a grpo stage as every place shows them: the last one whose groups have all finished, and
those that are open.

The groups that finish first are the easy ones, so the means of an open step are too high: it is
shown as open, with its number of groups, and is no point of a curve. Used by `standing`, from which
`forge status`, `forge show` and the monitor read, and by the supervisor for its console.
"""

# pyright: strict
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.store.reader import RunReader

BACK = 32
"""Steps before the newest one that are read: more than a slow group stays open."""

MEANS = ("reward", "pass_rate", "flat_share")

_STEPS = """
SELECT step, is_open, num_groups, num_expected_groups, num_flat_groups, reward, pass_rate
FROM v_steps WHERE stage = :stage AND step >= (SELECT step FROM groups
    WHERE stage = :stage AND purpose = 'train' ORDER BY step DESC LIMIT 1) - :back
ORDER BY step
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """A step whose groups have not all finished."""

    step: int
    num_groups: int
    """Groups that have finished."""
    num_expected_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSteps:
    """The last finished step with its means, None before it, and the open steps."""

    step: int | None = None
    reward: float | None = None
    pass_rate: float | None = None
    flat_share: float | None = None
    open_steps: tuple[OpenStep, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The numbers by the names that `forge status --json` and `forge show --json` print."""
        plain = asdict(self)
        return {"played_step": plain.pop("step"), **plain}


def describe_steps(data: Mapping[str, Any]) -> list[str]:
    """`step 12: reward 0.388 pass_rate 0.41 flat_share 0.1`, `step 13 open (5 of 8 groups)`.

    Args:
        data: an object with the numbers of `PlayedSteps.to_json`.
    """
    means = [f"{name} {number(data[name])}" for name in MEANS if data[name] is not None]
    played = [f"step {data['played_step']}: {' '.join(means)}"] if means else []
    return played + [
        f"step {each['step']} open ({each['num_groups']} of {each['num_expected_groups']} groups)"
        for each in data["open_steps"]
    ]


def load_played_steps(reader: RunReader, *, stage: int | None) -> PlayedSteps:
    """The steps of a stage; empty for one that plays none."""
    rows = reader.rows(_STEPS, {"stage": stage, "back": BACK})
    last = next((row for row in reversed(rows) if not row["is_open"]), None)
    open_steps = tuple(
        OpenStep(**{name: row[name] for name in OpenStep.__dataclass_fields__})
        for row in rows
        if row["is_open"]
    )
    if last is None:
        return PlayedSteps(open_steps=open_steps)
    return PlayedSteps(
        step=last["step"],
        reward=last["reward"],
        pass_rate=last["pass_rate"],
        flat_share=(last["num_flat_groups"] or 0) / last["num_groups"],
        open_steps=open_steps,
    )
