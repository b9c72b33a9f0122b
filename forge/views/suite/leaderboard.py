"""A result of a suite for people: a table on the terminal, and a row of a leaderboard in Markdown.

`leaderboard.md` in a run directory has the head of the table and one row, so that rows of several
runs can be put under one head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group as RichGroup

LEADERBOARD = "leaderboard.md"
"""Name of the file in the run directory."""
SHOWN = ("0", "1", "2")
"""Values of p in a leaderboard's row."""


def leaderboard(result: dict[str, Any]) -> str:
    """Head and row of a Markdown table, and the notes that the figures need."""
    cells = _cells(result)
    lines = [list(cells), ["---"] * len(cells), [_escaped(cell) for cell in cells.values()]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_notes(result)}\n"


def render_result(result: dict[str, Any]) -> RichGroup:
    """The figures of first answers, of each turn, and of the best by each turn."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    from forge.store.statements import RowTable
    from forge.views.text.fitting import Fitting

    known = tuple((name, cell) for name, cell in _cells(result).items() if cell != NONE)
    figures = RowTable(columns=("figure", "value"), rows=known)
    head = ("p", *(f"{kind} {turn}" for kind, turn, _ in _columns(result)))
    of = [figures_of for _, _, figures_of in _columns(result)]
    ps = [p for p, first in of[0]["fast_p"].items() if first is not None]
    rows = [(f"fast_{p}", *(_percent(each["fast_p"][p]) for each in of)) for p in ps]
    rows.append(("geomean", *(_times(each["geomean_correct"]) for each in of)))
    rows.append((f"all, floor {result['metrics']['geomean_floor']:g}x",
                 *(_times(each["geomean_all"]) for each in of)))  # fmt: skip
    shown = tuple(row for row in rows if any(cell != NONE for cell in row[1:]))
    lines = [head, *shown]
    if len(shown) < len(of):  # without times there is one figure: a line for each turn is narrower
        lines = list(zip(*lines, strict=True))
    by_turn = RowTable(columns=lines[0], rows=tuple(lines[1:]))
    return RichGroup(Fitting(figures), Fitting(by_turn), Text(_notes(result)))


def _columns(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    found = [("turn", number, of) for number, of in result["by_turn"].items()]
    if len(found) > 1:
        found += [("best by", number, of) for number, of in result["best_by_turn"].items()]
    return [(kind, str(int(number) + 1), of) for kind, number, of in found]


def _cells(result: dict[str, Any]) -> dict[str, str]:
    metrics, counts, judge = result["metrics"], result["counts"], result["judge"]
    sampling, last = result["sampling"], list(result["best_by_turn"].values())[-1]
    judged = f"{counts['num_judged_problems']} of {counts['num_problems']}"
    at_k = {f"pass@{k}": _percent(each) for k, each in _ends(metrics["pass_at_k"])}
    fast = {f"fast_{p}": _percent(metrics["fast_p"][p]) for p in SHOWN}
    best = {f"best fast_{p}": _percent(last["fast_p"][p]) for p in SHOWN}
    return {
        "model": result["model"]["label"],
        "suite": result["suite"]["name"],
        "problems judged": judged,
        "samples x turns": f"{sampling['samples']} x {sampling['turns']}",
        "protocol": f"{judge['protocol']}, {judge['policy']}",
        "device": ", ".join(dict.fromkeys(each["device"] for each in judge["used"])) or NONE,
        "baseline": judge["baseline"],
        **at_k,
        "compiles": _percent(metrics["compile_rate"]),
        **fast,
        **(best if sampling["turns"] > 1 else {}),
        "geomean": _times(metrics["geomean_correct"]),
        "geomean of all": _times(metrics["geomean_all"]),
        **_other(result["other_baseline"]),
        "roofline": _percent(metrics["roofline"]),
        "commit": result["machine"]["commit"][:8] or NONE,
    }


def _other(other: dict[str, Any] | None) -> dict[str, str]:
    """Cells of first answers against the other baseline, if it was measured."""
    if other is None:
        return {}
    first, name = other["by_turn"]["0"], other["baseline"]
    return {
        f"fast_1 ({name})": _percent(first["fast_p"]["1"]),
        f"geomean ({name})": _times(first["geomean_correct"]),
    }


def _ends(at_k: dict[str, Any]) -> list[tuple[str, Any]]:
    """pass@1, and pass@k of the largest k."""
    ks = sorted(at_k, key=int)
    return [(k, at_k[k]) for k in dict.fromkeys([*ks[:1], *ks[-1:]])]


def _notes(result: dict[str, Any]) -> str:
    counts = result["counts"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts["unjudgeable"].items())
    infra = counts["turns_by_status"].get("infra_error", 0)
    notes = [
        "Intervals: 95 %, over problems. All rates are of the judged problems"
        + (f"; unjudgeable: {reasons}." if reasons else "; none was unjudgeable.")
    ]
    if infra:
        notes.append(f"{infra} turns were lost to faults of the machine and count nowhere.")
    if result["metrics"]["fast_p"]["1"] is None:
        notes.append("No times: the judge had no GPU.")
    else:
        notes.append(
            "geomean: speed-ups of correct kernels; of all: wrong answers and slower ones count as "
            f"{result['metrics']['geomean_floor']:g}x."
        )
    return " ".join(notes)


def _percent(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return NONE
    value, low, high = (100 * (each or 0.0) for each in interval)
    return f"{value:.1f} % ({low:.0f}-{high:.0f})"


def _times(interval: Sequence[float | None] | None) -> str:
    if interval is None or interval[0] is None:
        return NONE
    value, low, high = interval
    return f"{value:.2f}x ({low:.2f}-{high:.2f})" if high is not None else f"{value:.2f}x"


def _escaped(cell: str) -> str:
    """A cell that cannot end its column or its row."""
    return " ".join(cell.split()).replace("|", "\\|")
