"""A killed run whose run.db is replaced by an older copy goes on, and says what the copy lacks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge.store.acknowledged import read_acknowledged
from tests.e2e.commands import forge, kill, last_trained, opened, start, until
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]


def test_a_resume_on_an_older_copy_of_run_db_says_what_is_missing_and_reuses_no_id(
    grpo_project: Path,
) -> None:
    (grpo_project / "grpo.toml").write_text(GRPO_EXPERIMENT)
    root = grpo_project / "runs" / "grpo-1"

    killed = start(grpo_project, "run", "grpo.toml")

    until(killed, lambda: last_trained(root) >= 1, what="step 1 to be trained")
    with opened(root) as db, closing(sqlite3.connect(grpo_project / "older.db")) as older:
        db.backup(older)
        (kept,) = older.execute("SELECT max(sample_id) FROM samples").fetchone()
    until(killed, lambda: last_trained(root) >= 5, what="step 5 to be trained")
    kill(killed, root)
    whole = read_acknowledged(root / "acknowledged")
    with opened(root) as db:
        trained = set(db.execute("SELECT sample_id FROM sample_uses WHERE step <= 3"))
    for file in root.glob("run.db*"):
        file.unlink()
    (grpo_project / "older.db").rename(root / "run.db")

    looked = forge("doctor", "grpo-1", cwd=grpo_project)
    assert looked.returncode == 0, looked.stdout
    finished = forge("resume", "grpo-1", cwd=grpo_project)
    assert finished.returncode == 0, finished.stderr
    assert "rows that were recorded are missing" in finished.stderr
    with opened(root) as db:
        (message,) = db.execute("SELECT message FROM events WHERE kind = 'rows_missing'").fetchone()
        ids = db.execute(
            "SELECT min(group_id), (SELECT min(sample_id) FROM samples WHERE sample_id > ?) "
            "FROM turns WHERE attempt = 2",
            (kept,),
        ).fetchone()
        again = set(db.execute("SELECT sample_id FROM sample_uses WHERE attempt = 2"))
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert message in finished.stderr.replace("\n", " ")
    assert ids[0] > whole.group_id
    assert ids[1] > whole.sample_id
    assert not again & trained, "a sample was trained twice"
