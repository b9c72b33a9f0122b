"""A report contains no secrets and overwrites only reports."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from forge.errors import ConfigError
from forge.store.reader import open_run
from forge.views.compare import find_changes
from forge.views.report import write_report
from forge.views.text.secrets import hide_in_diff, hide_secrets, is_secret
from tests.report.made_runs import make_run
from tests.store.storefactory import attempt

if TYPE_CHECKING:
    from pathlib import Path

DIFF = """\
--- a/experiments/mine.toml
+++ b/experiments/mine.toml
+[notify]
+webhook = "https://hooks.example/T0/s3cret"
+command = "curl -H 'Authorization: Bearer s3cret' https://x.example"
 notify = { webhook = "https://hooks.example/T0/s3cret" }
-HF_TOKEN = "s3cret"
+export API_KEY='s3cret'
+learning_rate = 1e-3
"""


def test_a_notification_command_is_shown_without_its_arguments() -> None:
    text = '[notify]\ncommand = "curl -d \\"s3cret\\" https://x/s3cret"\n[model]\ncommand = "c d"\n'
    hidden = '[notify]\ncommand = "curl …"\n[model]\ncommand = "c d"\n'
    assert hide_secrets(text) == hidden


@pytest.mark.parametrize("rest", ["?token=s3cret", "#s3cret", "/x?s3cret", "/a@b/s3cret"])
@pytest.mark.parametrize("user", ["", "me:s3cret@", "me:s3@s3cret@"])
def test_only_the_host_of_a_webhook_is_shown(user: str, rest: str) -> None:
    hidden = hide_secrets(f'[notify]\nwebhook = "https://{user}h.example:8{rest}"\n')
    assert hidden == '[notify]\nwebhook = "https://h.example:8/…"\n'


def test_a_diff_hides_the_secrets_of_experiments() -> None:
    hidden = hide_in_diff(DIFF)
    assert "s3cret" not in hidden
    assert hidden.count("\n") == DIFF.count("\n")
    for kept in ("hooks.example", "curl", "HF_TOKEN", "+learning_rate = 1e-3"):
        assert kept in hidden


def test_the_diff_of_a_report_hides_secrets(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "d-1", [replace(attempt(), code_diff=DIFF)])
    page = write_report(paths).read_text(encoding="utf-8")
    assert "learning_rate" in page
    assert "s3cret" not in page


def test_a_comparison_lists_a_changed_secret_without_its_value(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, [attempt()]) for name in ("a-1", "b-1")]
    for paths, host in zip(runs, ("one", "two"), strict=True):
        text = f'[notify]\nwebhook = "https://h/{host}"\n[serve.env]\nHF_TOKEN = "{host}"\n'
        with closing(sqlite3.connect(paths.run_db, isolation_level=None)) as connection:
            connection.execute("UPDATE runs SET experiment = ?", (text,))
    with open_run(runs[0]) as a, open_run(runs[1]) as b:
        found = {each.key: (each.a, each.b) for each in find_changes(a, b)}
    assert found == {"notify.webhook": ("…", "…"), "serve.env.HF_TOKEN": ("…", "…")}
    assert not is_secret("notify.on")


def test_a_report_overwrites_only_reports(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "o-1", [attempt()])
    kept = paths.run_db.read_bytes()
    with pytest.raises(
        ConfigError, match=r"run\.db: exists and is not a report; name another file"
    ):
        write_report(paths, out=paths.run_db)
    assert paths.run_db.read_bytes() == kept
    target = tmp_path / "page.html"
    target.touch()
    for _ in range(2):
        assert write_report(paths, out=target) == target
