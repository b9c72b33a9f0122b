"""The canned run is a complete small quickstart: its views have rows, no text is missing."""

import sqlite3
from pathlib import Path

from forge.store.layout import RunPaths, read_status
from forge.store.reader import open_run
from forge.views.show import load_show
from tests import canned
from tests.canned.make import MAX_BYTES

EMPTY_VIEWS = {
    *(
        "v_replayed",
        "v_rewinds",
        "v_nodes",
        "v_judge_noise",
        "v_calls",
        "v_programs",
        "v_protocols",
        "v_shapes",
    ),
    *("live_groups", "live_turns"),
    *("v_unjudgeable", "v_judged_again", "v_fast_p", "v_fast_p_by_turn", "v_geomean"),
}
"""The run was never resumed, kernels are not timed on a CPU, and its evaluations hold
no figures of speed."""


def test_it_holds_every_stage_and_every_step(canned_run: RunPaths) -> None:
    with open_run(canned_run) as reader:
        shown = load_show(reader)
        steps = reader.query("SELECT stage, step FROM v_steps ORDER BY step").rows
    assert [stage["state"] for stage in shown["stages"]] == ["done"] * 5
    assert [stage["kind"] for stage in shown["stages"]] == ["eval", "sft", "eval", "grpo", "eval"]
    assert steps == tuple((3, step) for step in range(1, 21))
    assert len(shown["evaluations"]) == 4
    assert read_status(canned_run)["state"] == "done"
    assert (canned_run.root / "logs" / "latest" / "supervisor.log").read_text()


def test_every_view_but_these_has_rows(canned_run: RunPaths) -> None:
    with open_run(canned_run) as reader:
        names = [
            n for (n,) in reader.query("SELECT name FROM sqlite_master WHERE type='view'").rows
        ]
        empty = {name for name in names if reader.one(f'SELECT * FROM "{name}" LIMIT 1') is None}
    assert empty == EMPTY_VIEWS


def test_groups_are_whole_and_no_text_is_missing(canned_run: RunPaths) -> None:
    with open_run(canned_run) as reader:
        assert not reader.rows(
            "SELECT group_id FROM groups g WHERE num_rollouts <> (SELECT count(*) FROM "
            "trajectories r WHERE r.group_id = g.group_id)"
        )
        assert not reader.rows(
            "SELECT group_id, rollout FROM trajectories r WHERE num_turns <> (SELECT count(*) FROM "
            "turns t JOIN verdicts USING (group_id, rollout, turn) "
            "WHERE t.group_id = r.group_id AND t.rollout = r.rollout)"
        )
        assert not reader.rows(
            "SELECT turn_id FROM v_turns WHERE prompt IS NULL OR (completion_id AND completion IS "
            "NULL) OR (code_id AND code IS NULL)"
        )


def test_it_is_small_and_opens_as_its_writer_left_it(tmp_path: Path) -> None:
    assert canned.ARCHIVE.stat().st_size <= MAX_BYTES
    paths = canned.unpack(tmp_path)
    connection = sqlite3.connect(paths.run_db)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
