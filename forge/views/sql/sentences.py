"""The answer to a research question in one sentence, from the rows of its queries.

Pure: called by `questions` with the tables that it prints below the sentence, so that both agree. A
question without rows has a sentence that says what is missing.
"""

# pyright: strict
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import at_least, duration, number, percent, share

if TYPE_CHECKING:
    from forge.store.statements import RowTable

Row = dict[str, Any]
Rows = list[Row]

LEAST_STEPS = 4
"""Finished steps from which the first ones are compared with the last."""
MOST_COMPARED = 10
"""Steps at each end of a stage."""
NUM_ERRORS = 2
"""Standard errors from which a change is clear."""


def sentence(number_of: int, tables: Mapping[str, RowTable]) -> str:
    """One sentence; empty for a question that has none."""
    rows = {name: rows_of(table) for name, table in tables.items()}
    if not any(rows.values()):
        return MISSING.get(number_of, "The run has no rows about this yet.")
    answer = ANSWERS.get(number_of)
    return answer(rows) if answer is not None else ""


def rows_of(table: RowTable) -> Rows:
    """The rows of a table by column."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _learning(rows: Mapping[str, Rows]) -> str:
    levels, solved = rows["levels"], ""
    if levels:
        num, of = (sum(row[name] for row in levels) for name in ("num_solved", "num_problems"))
        solved = f"; {num} of {of} training problems were solved at least once"
    steps = _last_stage([row for row in rows["pass-rate"] if not row["is_open"]])
    rates = [row["pass_rate"] for row in steps if row["pass_rate"] is not None]
    if len(rates) < LEAST_STEPS:
        return f"Too early to say: {len(rates)} steps of GRPO have finished{solved}."
    return f"{_change('The pass rate of first turns', rates, percent)}{solved}."


def _change(what: str, values: Sequence[float], show: Callable[[float], str]) -> str:
    """`X rose from 11.0 % in the first 5 steps to 21.0 % in the last 5`, or that it did not."""
    num = min(MOST_COMPARED, len(values) // 2)
    first, last = values[:num], values[-num:]
    change = fmean(last) - fmean(first)
    error = math.hypot(
        *(stdev(part) / math.sqrt(num) if num > 1 else 0.0 for part in (first, last))
    )
    is_clear = abs(change) > NUM_ERRORS * error
    between = (
        f"from {show(fmean(first))} in the first {num} steps to {show(fmean(last))} in the last"
    )
    if not is_clear:
        return f"{what} shows no clear change: {between} {num}"
    return f"{what} {'rose' if change > 0 else 'fell'} {between} {num}"


def _flat(rows: Mapping[str, Rows]) -> str:
    groups = rows["flat-groups"]
    num, flat, failed, solved = (
        sum(row[name] or 0 for row in groups)
        for name in ("num_groups", "num_flat", "all_failed", "all_solved")
    )
    return (
        f"{flat} of {num} groups ({share(flat / num)}) had no variance and taught nothing; "
        f"{failed} groups had no correct turn, {solved} were solved by every rollout."
    )


def _failures(rows: Mapping[str, Rows]) -> str:
    total = sum(row["num_turns"] for row in rows["failures"])
    worst = rows["failures"][0]
    begin = f"Most failures are {worst['status']} ({worst['reason']}): "
    begin += f"{share(worst['num_turns'] / total)} of {total:,}"
    mix = _last_step(rows["failure-mix"])
    if not mix:
        return f"{begin}."
    listed = ", ".join(f"{row['status']} {share(row['share'])}" for row in mix[:3])
    return f"{begin}; at step {mix[0]['step']}: {listed}."


def _best(rows: Mapping[str, Rows]) -> str:
    best = (rows["best-of-problem"] or rows["best-kernels"])[0]
    at = f" at step {best['step']}" if "step" in best else ""
    found = f"for {best['problem_id']} was found{at} by policy {best['policy_version']}"
    if best["speedup_low"] is None:
        return f"The best kernel ({best['ranked_by']}) {found}; nothing was timed."
    return (
        f"The best kernel {found} and is {at_least(best['speedup_low'])} as fast as its baseline."
    )


def _stale(rows: Mapping[str, Rows]) -> str:
    ages = rows["staleness"]
    num = sum(row["num_samples"] for row in ages)
    mean = sum(row["staleness"] * row["num_samples"] for row in ages) / num if num else 0.0
    oldest = max((row["staleness"] for row in ages), default=0)
    dropped = sum(row["num_dropped_groups"] or 0 for row in rows["stale-steps"])
    return (
        f"{num:,} samples were {mean:.2g} steps old on average and {oldest} at most; "
        f"{dropped:.0f} groups were dropped as too old."
    )


def _suspects(rows: Mapping[str, Rows]) -> str:
    found = rows["suspects"]
    odd = [row["odd"] for row in found if row["odd"]]
    if not odd:
        return f"None of the {len(found)} highest rewards has a suspicious sign."
    signs = ", ".join(f"{odd.count(sign)} {sign}" for sign in dict.fromkeys(odd))
    return f"{len(odd)} of the {len(found)} highest rewards have a suspicious sign: {signs}."


def _two_versions(rows: Mapping[str, Rows]) -> str:
    found = rows["side-by-side"]
    versions = sorted({row["policy_version"] for row in found})
    rates: list[str] = []
    for version in versions:
        of = [row for row in found if row["policy_version"] == version]
        correct = sum(row["status"] == "correct" for row in of)
        rates.append(f"policy {version} solved it in {correct} of {len(of)} first answers")
    return f"{found[0]['problem_id']}: {'; '.join(rates)}."


def _lengths(rows: Mapping[str, Rows]) -> str:
    steps = _last_stage([row for row in rows["lengths"] if not row["is_open"]])
    lengths = [row["completion_tokens"] for row in steps if row["completion_tokens"] is not None]
    if not lengths:
        return "No step of GRPO has finished yet."
    cut = percent(steps[-1]["truncated_share"])
    end = f"; {cut} of the last step's answers were cut off at their maximum length."
    if len(lengths) < LEAST_STEPS:
        return f"Answers have {number(lengths[-1])} tokens on average{end}"
    return f"{_change('The mean length of answers', lengths, lambda x: f'{x:.0f} tokens')}{end}"


def _wall(rows: Mapping[str, Rows]) -> str:
    stage = rows["wall-time"][-1]["stage"] if rows["wall-time"] else None
    of = {row["what"]: row["seconds"] for row in rows["wall-time"] if row["stage"] == stage}
    wall = of.get("step/wall/seconds")
    idle = [row for row in rows["idle"] if row["stage"] == stage and row["idle_share"] is not None]
    listed = ", ".join(f"{row['role']} {share(row['idle_share'])}" for row in idle)
    took = f"The steps of stage {stage} took {duration(wall)}" if wall else "No step was timed"
    return f"{took}; idle: {listed}." if listed else f"{took}."


def _noise(rows: Mapping[str, Rows]) -> str:
    found = rows["judge-noise"]
    listed = "; ".join(
        f"{row['device']}: {percent(row['relative_range'])} on average, "
        f"{percent(row['worst_range'])} at worst, over {row['num_kernels']} kernels"
        for row in found
    )
    return f"Repeated timings of a kernel range over {listed}."


def _batch(rows: Mapping[str, Rows]) -> str:
    found = rows["batch"]
    first = found[0]
    advantages = [row["advantage"] for row in found]
    return (
        f"Step {first['step']} of stage {first['stage']} trained {len(found)} samples of "
        f"{len({row['problem_id'] for row in found})} problems, with advantages of "
        f"{min(advantages):+.2g} to {max(advantages):+.2g}."
    )


def _terms(rows: Mapping[str, Rows]) -> str:
    top = next((row for row in rows["reward-shares"] if row["share_of_reward"] is not None), None)
    if top is None:
        return "No turn has earned a reward yet."
    also = top["correlation_with_reward"]
    correlation = f"; its correlation with the reward is {also:.2f}" if also is not None else ""
    return (
        f"The term {top['term']} pays {share(top['share_of_reward'])} of the reward{correlation}."
    )


def _collapse(rows: Mapping[str, Rows]) -> str:
    found = [row for row in rows["duplicates"] if row["purpose"] == "train"] or rows["duplicates"]
    shares = [row["duplicate_share"] for row in _last_stage(found)]
    if len(shares) < LEAST_STEPS:
        return f"{percent(shares[-1])} of the first answers are copies of a sibling's."
    return f"{_change('The share of duplicate first answers', shares, percent)}."


def _measured(rows: Mapping[str, Rows]) -> str:
    found = rows["evaluations"]
    if not found:
        return "No evaluation has ended yet."
    last = found[-1]
    between = f"{percent(last['ci_low'])} to {percent(last['ci_high'])}"
    end = f"{percent(last['pass_at_1'])} in {last['stage']} (95 %: {between})"
    if len(found) == 1:
        return f"pass@1 is {end}."
    begin = f"pass@1 went from {percent(found[0]['pass_at_1'])} in {found[0]['stage']} to {end}"
    better = rows["first-better"]
    if not better:
        return f"{begin}; no interval lies above that of the first evaluation."
    return f"{begin}; {better[0]['stage']} was the first whose interval lies above it."


def _unsolved(rows: Mapping[str, Rows]) -> str:
    found = rows["unsolved"]
    never = sum(bool(row["never_rewarded"]) for row in found)
    broken = len({(row["purpose"], row["problem_id"]) for row in rows["unjudgeable"]})
    judged = f"; {broken} could not be judged" if broken else ""
    return f"{len(found)} played problems were never solved, {never} never earned a reward{judged}."


def _ending(rows: Mapping[str, Rows]) -> str:
    found = rows["last-minute"]
    last = found[-1]
    gaps = [(b["seconds_to_end"] - a["seconds_to_end"], a) for a, b in pairwise(found)]
    silence = max(gaps, key=lambda each: each[0], default=None)
    quiet = (
        f"; the longest silence, {silence[0]:.0f} s, followed {silence[1]['what']}"
        if silence
        else ""
    )
    words = f" ({last['words']})" if last["words"] else ""
    return f"{len(found)} events before the end; the last was {last['what']}{words}{quiet}."


def _last_stage(rows: Rows) -> Rows:
    """Rows of the last stage among them."""
    return [row for row in rows if row["stage"] == rows[-1]["stage"]]


def _last_step(rows: Rows) -> Rows:
    """Rows of the last step among them."""
    end = rows[-1] if rows else {}
    return [row for row in rows if (row["stage"], row["step"]) == (end["stage"], end["step"])]


ANSWERS: dict[int, Callable[[Mapping[str, Rows]], str]] = {
    1: _learning, 2: _flat, 3: _failures, 4: _best, 5: _stale, 6: _suspects, 7: _two_versions,
    8: _lengths, 9: _wall, 10: _noise, 11: _batch, 12: _terms, 13: _collapse, 14: _measured,
    16: _unsolved, 17: _ending,
}  # fmt: skip
"""Question to its sentence."""
MISSING = {
    1: "Too early to say: no step of GRPO has finished.",
    3: "No turn has failed.",
    4: "No kernel was correct yet.",
    10: "No kernel was timed more than once.",
    14: "No evaluation has ended yet.",
    16: "No problem that was played in training is unsolved.",
}
"""Question to its sentence without rows."""
