"""The description of an attempt includes its code."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from forge import origin
from forge.runner.attempt import describe_attempt

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_edited_file_of_a_checkout_is_in_the_recorded_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
