"""Results of each problem over a run: a list, sorted and filtered, with trends; each attempt; the
best kernel of each, with code and origin, and a file of it.

Called by the Problems, Attempts and Kernels screens of the monitor and by `forge kernels export`;
the rows are the same from Python. Every query is bounded (a limit on rows, trends over a bounded
number of groups), so a run of a million turns answers as fast as a short one. Totals come from
v_problems; evaluations that were interrupted and repeated do not count. Code is read for one kernel
at a time; a kernel's file holds exactly the bytes that were judged.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.store.layout import write_file
from forge.store.reader import RunReader
from forge.views.rollouts import ROLLOUTS, parse_address
from forge.views.run_state import load_stages, stage_name

ORDERS: dict[str, str] = {
    "name": "problem_id, purpose",
    "pass": "correct_share DESC, num_turns DESC, problem_id",
    "speedup": "best_speedup DESC NULLS LAST, correct_share DESC, problem_id",
    "attempts": "num_rollouts DESC, problem_id",
    "reward": "best_reward DESC NULLS LAST, problem_id",
    "level": "level DESC, family, problem_id",
    "recent": "last_played_by_version DESC, problem_id",
}
"""Name of an order to its SQL; the largest comes first."""

TREND_GROUPS = 16
"""Groups in a trend, spread evenly over the problem's groups, oldest first: one per character of a
cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFilter:
    """Selection and order of problems; None means any."""

    words: str | None = None
    """Part of a problem's or family's name, ignoring case, or a glob: `softmax-*`."""
    purpose: str | None = None
    is_solved: bool | None = None
    """True selects problems with a correct turn, False those without."""
    order: str = "name"
    is_reversed: bool = False
    limit: int = 300


_LIST = """
SELECT problem_id, family, level, purpose, num_rollouts, num_turns, correct_share, best_speedup,
    best_reward, first_solved_by_version, last_played_by_version, count(*) OVER () AS num_found
FROM v_problems
WHERE problem_id IS NOT NULL AND (:purpose IS NULL OR purpose = :purpose)
    AND (:glob IS NULL OR lower(problem_id) GLOB :glob OR lower(family) GLOB :glob)
    AND (:solved IS NULL OR (num_correct_turns > 0) = :solved)
ORDER BY {order} LIMIT :limit
"""

_TRENDS = """
SELECT problem_id, purpose, group_id,
    (SELECT avg(is_correct) FROM trajectories r WHERE r.group_id = spread.group_id) AS solved
FROM (
    SELECT problem_id, purpose, group_id,
        row_number() OVER (PARTITION BY problem_id, purpose ORDER BY group_id) AS place,
        count(*) OVER (PARTITION BY problem_id, purpose) AS num
    FROM groups WHERE num_rollouts > 0
        AND problem_id IN (SELECT value FROM json_each(:problems))
        AND group_id NOT IN (SELECT group_id FROM v_replayed)) AS spread
WHERE num <= :points OR (place * :points) / num > ((place - 1) * :points) / num
ORDER BY group_id
"""
"""The groups at the ends of `points` equal parts; the last one is always included."""


def load_problems(reader: RunReader, wanted: ProblemFilter) -> list[dict[str, Any]]:
    """Rows of v_problems that were played, with `trend`, the share of rollouts with a correct turn
    by group, and `num_found`, the number of matching rows without the limit. Raises ConfigError for
    an unknown order."""
    if wanted.order not in ORDERS:
        raise ConfigError(f"order {wanted.order}: no such order; allowed: {', '.join(ORDERS)}")
    order = _reverse(ORDERS[wanted.order], is_reversed=wanted.is_reversed)
    asked = {
        "purpose": wanted.purpose, "glob": _glob(wanted.words), "solved": wanted.is_solved,
        "limit": wanted.limit,
    }  # fmt: skip
    return _with_trends(reader, reader.rows(_LIST.format(order=order), asked))


def _with_trends(reader: RunReader, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ids = json.dumps(sorted({row["problem_id"] for row in found}))
    trends: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in reader.rows(_TRENDS, {"problems": ids, "points": TREND_GROUPS}):
        if row["solved"] is not None:
            trends[row["problem_id"], row["purpose"]].append(row["solved"])
    for row in found:
        row["trend"] = tuple(trends.get((row["problem_id"], row["purpose"]), ()))
    return found


def _glob(words: str | None) -> str | None:
    """A lower-case pattern; without `*` or `?` it may match anywhere. `[` is literal."""
    if not words or not words.strip():
        return None
    pattern = words.strip().lower().replace("[", "[[]")
    return pattern if "*" in pattern or "?" in pattern else f"*{pattern}*"


def _reverse(order: str, *, is_reversed: bool) -> str:
    """Reverses the first key of an order; nulls stay last."""
    if not is_reversed:
        return order
    first, _, rest = order.partition(", ")
    name, is_descending = first.split(" ")[0], " DESC" in first
    turned = f"{name}{'' if is_descending else ' DESC'} NULLS LAST"
    return f"{turned}, {rest}" if rest else turned


MAX_ATTEMPTS = 2000

_ATTEMPTS = ROLLOUTS.format(
    found="SELECT t.group_id, t.rollout FROM groups g JOIN turns t USING (group_id) "
    "WHERE t.turn = 0 AND g.problem_id = :problem "
    "AND g.group_id NOT IN (SELECT group_id FROM v_replayed) "
    "ORDER BY g.group_id DESC, t.rollout LIMIT :limit"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemHistory:
    problem_id: str
    totals: list[dict[str, Any]]
    """Rows of v_problems, one per purpose, with their trends."""
    attempts: list[dict[str, Any]]
    """Rows of `rollouts.ROLLOUTS` with `stage_name`, latest first; at most MAX_ATTEMPTS."""
    source: str | None

    @property
    def num_attempts(self) -> int:
        return sum(row["num_rollouts"] for row in self.totals)


def load_history(reader: RunReader, problem_id: str) -> ProblemHistory:
    """All attempts at one problem and its totals; both empty if it was not played."""
    totals = reader.rows("SELECT * FROM v_problems WHERE problem_id = ?", (problem_id,))
    attempts = reader.rows(_ATTEMPTS, {"problem": problem_id, "limit": MAX_ATTEMPTS})
    stages = load_stages(reader)
    for row in attempts:
        row["stage_name"] = None if row["stage"] is None else stage_name(stages, row["stage"])
    return ProblemHistory(
        problem_id=problem_id,
        totals=_with_trends(reader, totals),
        attempts=attempts,
        source=reader.value(
            "SELECT body FROM texts WHERE text_id = "
            "(SELECT source_id FROM problems WHERE problem_id = ?)",
            (problem_id,),
        ),
    )


MAX_NAME = 100
"""Characters of a problem's name used in a file name."""

_KERNELS = """
SELECT rank, problem_id, family, level, ranked_by, speedup_low, speedup, candidate_us, baseline_us,
    num_launches, turn_id, stage, step, purpose, policy_version, recorded_at,
    count(*) OVER () AS num_found
FROM v_best_kernels
WHERE problem_id IS NOT NULL  -- unknown for a turn whose group is not recorded yet
    AND (:words IS NULL OR instr(lower(problem_id), :words) OR instr(lower(family), :words))
ORDER BY rank LIMIT :limit
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    run: str
    turn: dict[str, Any]
    """Its row of v_turns without prompt, completion and feedback, with stage_name."""
    code: str
    times: tuple[dict[str, Any], ...]
    """Every timing of the same code on its problem: turn_id, device, candidate_us, baseline_us,
    speedup. Empty if nothing was timed."""
    num_found_again: int
    """Correct turns of the problem with the same code, including this one."""


def load_kernels(
    reader: RunReader, *, words: str | None = None, limit: int = 300
) -> list[dict[str, Any]]:
    """Best kernel of each problem whose name or family contains `words`, best first: rows of
    v_best_kernels without the code and its length, which cost a read of the text each, and with
    `num_found`, the number without the limit."""
    asked = words.strip().lower() if words and words.strip() else None
    return reader.rows(_KERNELS, {"words": asked, "limit": limit})


def load_kernel(reader: RunReader, turn_id: str) -> Kernel | None:
    """The kernel of a turn, `g12.r3.t1`; None if there is no such turn or it has no code."""
    place = parse_address(turn_id)
    if place is None or place.turn is None:
        return None
    turn = reader.one(
        "SELECT turn_id, group_id, rollout, turn, stage, step, purpose, problem_id, family, level, "
        "status, reward, speedup, speedup_low, candidate_us, baseline_us, candidate_spread_us, "
        "baseline_spread_us, achieved_gbps, achieved_tflops, roofline_share, torch_share, "
        "num_launches, device, isolation, caps, harness, max_version AS policy_version, "
        "recorded_at, code_id, code FROM v_turns WHERE group_id = ? AND rollout = ? AND turn = ?",
        (place.group_id, place.rollout, place.turn),
    )
    if turn is None or not turn["code"]:
        return None
    stage = turn.pop("stage")
    turn["stage_name"] = None if stage is None else stage_name(load_stages(reader), stage)
    same = reader.rows(_SAME_CODE, (turn["problem_id"], turn["code_id"]))
    return Kernel(
        run=reader.paths.name,
        code=turn.pop("code"),
        turn=turn,
        times=tuple(row for row in same if row["candidate_us"] is not None),
        num_found_again=len(same),
    )


_SAME_CODE = """
SELECT t.turn_id, v.device, v.candidate_us, v.baseline_us, v.speedup
FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, turn)
WHERE g.problem_id = ? AND t.code_id = ? AND v.status = 'correct' ORDER BY t.turn_row LIMIT 1000
"""


def file_name(problem_id: str) -> str:
    """A file name without a path for any problem: `softmax-0000.py`."""
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", problem_id).lstrip(".-")[:MAX_NAME]
    return f"{plain or 'kernel'}.py"


def write_kernel(code: str, path: Path, *, may_replace: bool = False) -> Path:
    """Writes a kernel's source; the file is complete or absent. Returns its absolute path.

    Raises FileExistsError if the file exists and `may_replace` is false, ConfigError if it cannot
    be written.
    """
    try:
        path = path.expanduser().absolute()
        if path.is_dir():
            raise ConfigError(f"{path}: is a directory; name a file")
        if may_replace:
            write_file(path, code)
        else:
            _write_new(code, path)
    except FileExistsError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be written: {words}") from error
    return path


def _write_new(code: str, path: Path) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        try:
            file.write(code)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
