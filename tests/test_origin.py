"""The commit of a checkout, of a wheel, and of a package below a repository of the user; the
description of an attempt includes its code.
"""

import re
import subprocess
from pathlib import Path

import forge
from forge import origin
from forge.origin import RECORD, CodeOrigin, read_origin
from forge.runner.attempt import describe_attempt
from tests.views.terminals import told

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_repository(root: Path) -> Path:
    """A repository with a package; returns the package."""
    package = root / "forge"
    package.mkdir(parents=True)
    (package / "x.py").write_text("old\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    return package


def test_the_version_has_the_commit(capsys):
    said = told(capsys, "--version")
    assert re.fullmatch(
        rf"forge {forge.__version__}( \(commit [0-9a-f]{{12}}(, changed)?\))?\n", said
    )


def test_a_checkout_knows_its_commit_and_changes_of_it(tmp_path):
    package = make_repository(tmp_path)
    found = read_origin(package)
    assert re.fullmatch("[0-9a-f]{40}", found.commit)
    assert not found.is_changed
    (package / "x.py").write_text("new\n")
    assert read_origin(package) == CodeOrigin(commit=found.commit, is_changed=True)


def test_an_installed_package_has_the_commit_of_its_build_not_of_the_users_repository(tmp_path):
    make_repository(tmp_path)
    package = tmp_path / ".venv/lib/python3.11/site-packages/forge"
    package.mkdir(parents=True)
    assert str(read_origin(package)) == ""
    for built in (CodeOrigin(commit=COMMIT), CodeOrigin(commit=COMMIT, is_changed=True)):
        (package / RECORD).write_text(built.record)
        assert read_origin(package) == built
    assert str(read_origin(package)) == " (commit 0123456789ab, changed)"


def test_a_run_of_an_installed_package_records_the_commit_of_its_build(tmp_path, monkeypatch):
    (tmp_path / RECORD).write_text(CodeOrigin(commit=COMMIT, is_changed=True).record)
    monkeypatch.setattr(origin, "PACKAGE", tmp_path)
    found = describe_attempt(1, seed=0, gpus=())
    assert found.commit == COMMIT
    assert "built from a checkout with uncommitted changes" in found.code_diff
    assert found.versions["forge"] == forge.__version__


def test_an_edited_file_of_a_checkout_is_in_the_recorded_diff(tmp_path, monkeypatch):
    for name in ("forge/runner/x.py", "experiments/x.toml", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    (tmp_path / "forge/runner/x.py").write_text("new\n")
    (tmp_path / "README.md").write_text("new\n")
    monkeypatch.setattr(origin, "PACKAGE", tmp_path / "forge")
    found = describe_attempt(1, seed=0, gpus=())
    assert len(found.commit) == 40
    assert "+++ b/forge/runner/x.py" in found.code_diff
    assert "README" not in found.code_diff
    assert found.machine["cores"] >= 1
