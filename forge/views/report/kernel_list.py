"""The best kernels of a report: one table per problem family, with what tells its kernels apart.

Pure. A column whose value is the same for the whole family is named once, above the table.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from forge.views.text.numbers import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CODES_PER_FAMILY = 2
"""Kernels of a family whose source is shown."""
MOST_CODES = 16
NO_FAMILY = "other problems"

TRAITS = {
    "tl.dot": re.compile(r"\btl\.dot\("),
    "autotuned": re.compile(r"@triton\.autotune"),
    "loops": re.compile(r"^\s+(?:for|while)\b", re.MULTILINE),
    "atomics": re.compile(r"\btl\.atomic_"),
    "descriptors": re.compile(r"\btl\.(?:make_tensor_descriptor|make_block_ptr)\("),
    "num_warps": re.compile(r"\bnum_warps\s*="),
    "row blocks": re.compile(r"next_power_of_2\("),
    "no mask": re.compile(r"\A(?!.*\bmask\s*=).*\btl\.load\(", re.DOTALL),
}
"""Feature of a kernel to a pattern of its source."""


def kernels_by_family(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Families in the order of their best kernel: name, note, head and rows of a table, and the
    kernels whose source is shown.
    """
    families: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in kernels:
        families[row["family"] or NO_FAMILY].append(row)
    num_codes = 0
    found: list[dict[str, Any]] = []
    for name, rows in families.items():
        codes = [row for row in rows if row["code"]][:CODES_PER_FAMILY][: MOST_CODES - num_codes]
        num_codes += len(codes)
        head, cells, shared = _told_apart(rows, name)
        num = "1 kernel" if len(rows) == 1 else f"{len(rows)} kernels"
        note = ", ".join([num, *shared])
        found.append({"name": name, "note": note, "head": head, "rows": cells, "codes": codes})
    return found


def short_problem(problem_id: str, family: str) -> str:
    """`sum-hardtanh-sin` of `reduction-sum-hardtanh-sin` in the family reduction."""
    return problem_id.removeprefix(f"{family}-") if family else problem_id


def launches(num: int) -> str:
    """`1 launch`, `3 launches`."""
    return f"{num} launch{'es' * (num != 1)}"


def traits_of(code: str | None) -> str:
    """`loops, tl.dot`, a dash for none of them."""
    found = [name for name, pattern in TRAITS.items() if pattern.search(code or "")]
    return ", ".join(found) or NONE


def _told_apart(
    rows: Sequence[Mapping[str, Any]], family: str
) -> tuple[list[str], list[list[str]], list[str]]:
    """Head, rows, and the values that all rows share; columns of dashes are left out."""
    columns = {
        "problem": [short_problem(row["problem_id"], family) for row in rows],
        "at least": [_digits(row["speedup_low"], 2, "×") for row in rows],
        "speed-up": [_digits(row["speedup"], 2, "×") for row in rows],
        "µs": [_digits(row["candidate_us"], 1) for row in rows],
        "baseline µs": [_digits(row["baseline_us"], 1) for row in rows],
        "level": [str(row["level"]) for row in rows],
        "launches": [str(row["num_launches"]) for row in rows],
        "uses": [traits_of(row["code"]) for row in rows],
        "lines": [_num_lines(row["code"]) for row in rows],
        "policy": [str(row["policy_version"]) for row in rows],
        "turn": [row["turn_id"] for row in rows],
    }
    is_one = len(rows) == 1
    same = {name for name, cells in columns.items() if len(set(cells)) == 1 and not is_one}
    shared = [
        launches(int(cells[0])) if name == "launches" else f"{name} {cells[0]}"
        for name, cells in columns.items()
        if name in same and cells[0] != NONE
    ]
    kept = [n for n, cells in columns.items() if n not in same and set(cells) != {NONE}]
    return kept, [[columns[name][i] for name in kept] for i in range(len(rows))], shared


def _num_lines(code: str | None) -> str:
    return str(len(code.splitlines())) if code else NONE


def _digits(value: float | None, places: int, unit: str = "") -> str:
    return NONE if value is None else f"{value:,.{places}f}{unit}"
