"""Reading: read-only, decoded, also through stock sqlite3 and sqlite-utils."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

import forge
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.schema.views import view_names
from tests.store.storefactory import resumed_run, small_run, timing, turn, write_run


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    out = {texts: base / texts / "toy-1" for texts in ("plain", "zstd")}
    for texts, root in out.items():
        anyio.run(lambda root=root, texts=texts: write_run(root, small_run(), texts=texts))
    return out


EMPTY_VIEWS = (
    "v_fast_p",  # tests/views/test_statistics.py, as the next two
    "v_fast_p_by_turn",
    "v_geomean",
    "v_judge_noise",
    "v_calls",
    "v_programs",
    "v_protocols",
    "v_replayed",
    "v_nodes",
    "v_rewinds",
    "v_shapes",
    "v_judged_again",
    "v_unjudgeable",
    "live_groups",
    "live_turns",
)


@pytest.mark.parametrize("texts", ["plain", "zstd"])
@pytest.mark.parametrize("view", view_names())
def test_every_view_answers_and_has_a_comment(
    roots: dict[str, Path], view: str, texts: str
) -> None:
    with open_run(roots[texts]) as reader:
        rows = reader.rows(f"SELECT * FROM {view}")
        sql = reader.value("SELECT sql FROM main.sqlite_master WHERE name = ?", (view,))
    assert rows or view in EMPTY_VIEWS
    assert not any(isinstance(value, bytes) for row in rows for value in row.values())
    assert "--" in sql.splitlines()[1]


def test_compressed_and_plain_runs_read_the_same(roots: dict[str, Path]) -> None:
    query = "SELECT turn_id, prompt, completion, code, detail, feedback FROM v_turns"
    answers = []
    for root in roots.values():
        with open_run(root) as reader:
            answers.append(reader.rows(query))
    assert answers[0] == answers[1]
    assert "@triton.jit" in answers[0][0]["code"]


@pytest.mark.parametrize("view", view_names())
def test_stock_sqlite3_reads_every_view_of_a_plain_run(roots: dict[str, Path], view: str) -> None:
    with closing(sqlite3.connect(f"file:{roots['plain'] / 'run.db'}?mode=ro", uri=True)) as stock:
        stock.execute(f"SELECT * FROM {view}").fetchall()


def test_another_run_is_attached_read_only(roots: dict[str, Path]) -> None:
    other = roots["zstd"] / "run.db"
    with open_run(roots["plain"]) as reader:
        reader.query(f"ATTACH 'file:{other}?mode=ro' AS b")
        assert reader.value("SELECT count(*) FROM b.turns") == 24


def test_the_best_kernel_is_the_fastest_then_the_fewest_launches_then_the_shortest(
    tmp_path: Path,
) -> None:
    root = tmp_path / "toy-1"
    untimed = [
        turn(0, 0, code="a" * 50, num_launches=2),
        turn(0, 1, code="b" * 90, num_launches=1),
        turn(0, 2, code="c" * 80, num_launches=1),
    ]
    anyio.run(write_run, root, untimed)
    with open_run(root) as reader:
        best = reader.one("SELECT turn_id, ranked_by FROM v_best_kernels")
    assert best == {"turn_id": "g0.r2.t0", "ranked_by": "fewest launches, then shortest source"}
    timed = [turn(0, 3, speed=timing(1.5), num_launches=3), turn(0, 4, speed=timing(1.2))]
    anyio.run(write_run, root, timed)
    with open_run(root) as reader:
        best = reader.one("SELECT turn_id, ranked_by FROM v_best_kernels")
    assert best == {"turn_id": "g0.r3.t0", "ranked_by": "speedup_low"}


def test_steps_and_failures_count_the_stored_turns(roots: dict[str, Path]) -> None:
    with open_run(roots["plain"]) as reader:
        steps = reader.rows("SELECT * FROM v_steps")
        failures = reader.rows("SELECT * FROM v_failures WHERE purpose = 'train' AND step = 1")
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["num_groups"] == 2 and row["num_turns"] == 6 for row in steps)
    assert all(row["pass_rate"] == 0.0 and row["pass_rate_multi"] == 0.5 for row in steps)
    assert sum(row["num_turns"] for row in failures) == 4
    assert sum(row["share"] for row in failures) == pytest.approx(1.0)


def test_work_repeated_after_a_resume_is_counted_once(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", resumed_run())
    with open_run(tmp_path / "toy-1") as reader:
        trained = reader.rows("SELECT step, sample_id, attempt FROM v_samples")
        ages = reader.value("SELECT sum(num_samples) FROM v_staleness")
        failures = reader.value("SELECT sum(num_turns) FROM v_failures WHERE stage = 2")
        tries = reader.rows(
            "SELECT problem_id, num_rollouts FROM v_problems WHERE purpose = 'eval' ORDER BY 1"
        )
        siblings = reader.value("SELECT count(*) FROM v_duplicates WHERE stage = 2")
    assert len(trained) == len({row["sample_id"] for row in trained}) == ages == 12
    assert {(row["step"], row["attempt"]) for row in trained} == {(1, 1), (2, 2)}
    assert failures == siblings == 2
    assert [row["num_rollouts"] for row in tries] == [4, 4]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mount")
def test_a_run_on_a_read_only_medium_is_read(roots: dict[str, Path], tmp_path: Path) -> None:
    source = roots["plain"].parent
    subprocess.run(["mount", "--bind", str(source), str(tmp_path)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(tmp_path)], check=True)
        with open_run(tmp_path / "toy-1") as reader:
            assert reader.value("SELECT count(*) FROM v_turns") == 24
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("texts", ["plain", "zstd"])
def test_a_run_is_analysed_through_sqlite_utils(roots: dict[str, Path], texts: str) -> None:
    with forge.open(roots[texts]) as run:
        steps = list(run.db["v_steps"].rows_where("step > ?", [1], order_by="step"))
        assert [row["step"] for row in steps] == [2, 3]
        assert run.db["turns"].count == 24
        assert run.db.table("turns").pks == ["turn_row"]
        assert set(view_names()) <= set(run.db.view_names())
        (found,) = run.db.query("SELECT text(prompt_id) AS prompt FROM turns LIMIT 1")
        assert found == {"prompt": "Write a kernel for softmax."}
        assert "@triton.jit" in next(iter(run.db["v_turns"].rows))["code"]


def test_a_reader_sees_later_writers_after_a_second_reader_was_closed(canned_run: RunPaths):
    with open_run(canned_run) as first:
        before = first.value("SELECT count(*) FROM events")
        with open_run(canned_run) as second:  # opening and closing it keeps the first one's locks
            assert second.value("SELECT count(*) FROM events") == before
        for num in (1, 2):
            version = first.data_version()
            write_event(canned_run)
            assert first.value("SELECT count(*) FROM events") == before + num
            assert first.data_version() != version


def write_event(paths: RunPaths) -> None:
    """Writes an event from a process that ends, like the supervisor of a resumed run."""
    code = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None); "
        'connection.execute("INSERT INTO events (attempt, at, kind, message, data) '
        "VALUES (1, 2, 'x', 'y', '{}')\"); connection.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(paths.run_db)], check=True, timeout=30)
