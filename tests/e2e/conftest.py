"""A GRPO project for whole runs: three problems, and a model whose answers give a signal."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.experiments import PROBLEM, teach

NAMES = ("tanh", "exp", "abs")


@pytest.fixture(scope="session")
def grpo_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, made once for all workers; nobody may change it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = shared / "grpo-project"
    with (shared / "grpo-project.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "model").exists():
            folder = root / "problems" / "level1"
            folder.mkdir(parents=True, exist_ok=True)
            for name in NAMES:
                (folder / f"{name}.py").write_text(PROBLEM.format(name))
            teach(root / "partial", problems=sorted(folder.iterdir()))
            (root / "partial").rename(root / "model")
    return root


@pytest.fixture
def grpo_project(grpo_template: Path, tmp_path: Path) -> Path:
    """`tmp_path` with `problems/` and `model/`; the test adds the experiment."""
    shutil.copytree(grpo_template, tmp_path, dirs_exist_ok=True)
    return tmp_path
