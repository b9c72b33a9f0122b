# pyright: strict
"""The estimate of a candidate from the costs that its evaluation counted, and of its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from forge.evalpool.judge.estimate.cards import CALL_US, CARDS, Work, estimate
from forge.records.estimate import NodeEstimate, TimeEstimate

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NODES = 8
MAX_NAME = 120
MAX_NUMBER = 1e18
"""Larger bytes or FLOPs are no count of an evaluation."""


def estimate_program(
    costs: Sequence[dict[str, Any]],
    operations: Sequence[tuple[int, int]],
    *,
    card: str,
    precision: str,
    is_tf32: bool,
) -> TimeEstimate | None:
    """The estimate of one forward call.

    Args:
        costs: of the candidate's nodes in order, as `Outcome.body` has them: from a child that a
            candidate's program ran in, so each value is checked.
        operations: (bytes, FLOPs) of each operation of the reference.
        card: a name of CARDS.
        precision: of the problem: `fp32`, `fp16` or `bf16`.
        is_tf32: TF32 is allowed in products of the reference.

    Returns:
        The estimate; None if one of the two does nothing.
    """
    found = CARDS[card]
    kind = "half" if precision != "fp32" else "tf32" if is_tf32 else "fp32"
    nodes = [_node(one, card) for one in costs]
    baseline = [
        estimate(Work(tensor_bytes=num_bytes, flops={kind: flops}), found)[0]
        for num_bytes, flops in operations
    ]
    if not nodes or not baseline:
        return None
    slowest = sorted(range(len(nodes)), key=lambda number: -nodes[number].us)[:MAX_NODES]
    return TimeEstimate(
        card=card,
        candidate_us=CALL_US + sum(one.us for one in nodes),
        baseline_us=CALL_US + sum(baseline),
        nodes=tuple(nodes[number] for number in sorted(slowest)),
    )


def _node(cost: dict[str, Any], card: str) -> NodeEstimate:
    tensor_bytes, given = _count(cost.get("tensor_bytes")), cost.get("flops")
    by_unit = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    flops = {unit: _number(by_unit.get(unit)) for unit in CARDS[card].flops_per_clock}
    programs = cost.get("num_programs")
    work = Work(
        tensor_bytes=tensor_bytes,
        requested_bytes=_count(cost.get("requested_bytes")),
        flops=flops,
        contended=_count(cost.get("contended")),
        num_programs=None if programs is None else max(1, _count(programs)),
    )
    us, bound = estimate(work, CARDS[card])
    return NodeEstimate(
        name=str(cost.get("name"))[:MAX_NAME],
        line=_count(cost.get("line")),
        us=us,
        bound=bound,
        num_bytes=tensor_bytes,
        flops=sum(flops.values()),
    )


def _count(value: object) -> int:
    return int(_number(value))


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
        return 0.0
    return float(value)
