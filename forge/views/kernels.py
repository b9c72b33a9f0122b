"""The best kernel of each problem: a list, one kernel with code and origin, and a file of it.
Called by the Kernels screen of the monitor.

The list is v_best_kernels without code; code is read for one kernel at a time. A kernel's file
holds exactly the bytes that were judged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.views.rollouts import parse_address
from forge.views.run_state import load_stages, stage_name

if TYPE_CHECKING:
    from pathlib import Path

    from forge.store.reader import RunReader

MAX_NAME = 100
"""Characters of a problem's name used in a file name."""

_LIST = """
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
    """One judged kernel with its turn and all its timings."""

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
    return reader.rows(_LIST, {"words": asked, "limit": limit})


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
    same = _same_code(reader, turn)
    return Kernel(
        run=reader.paths.name,
        code=turn.pop("code"),
        turn=turn,
        times=tuple(row for row in same if row["candidate_us"] is not None),
        num_found_again=len(same),
    )


def _same_code(reader: RunReader, turn: dict[str, Any]) -> list[dict[str, Any]]:
    """Correct turns of the problem with the same code, oldest first."""
    return reader.rows(
        "SELECT t.turn_id, v.device, v.candidate_us, v.baseline_us, v.speedup "
        "FROM groups g JOIN turns t USING (group_id) JOIN verdicts v USING (group_id, rollout, "
        "turn) WHERE g.problem_id = ? AND t.code_id = ? AND v.status = 'correct' "
        "ORDER BY t.turn_row LIMIT 1000",
        (turn["problem_id"], turn["code_id"]),
    )


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
        if not may_replace and os.path.lexists(path):
            raise FileExistsError(f"{path}: exists")
        _write(code, path, may_replace=may_replace)
    except FileExistsError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be written: {words}") from error
    return path


def _write(code: str, path: Path, *, may_replace: bool) -> None:
    target = path.with_name(f".{path.name[:MAX_NAME]}.{os.getpid()}") if may_replace else path
    with target.open("x", encoding="utf-8", newline="") as file:  # x: never overwrites a file
        try:
            file.write(code)
            file.flush()
            if may_replace:
                target.replace(path)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
