"""`forge doctor RUN`: a finding for each kind of damage, the work of a resume, and no change."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from forge.commands.doctor.probe import Severity
from forge.commands.doctor.run import examine_run
from forge.records import Event, PolicyVersion, Status
from forge.store.layout import RunPaths, open_run_lock
from forge.store.reader import open_run
from forge.store.write.rows import Record
from forge.train.batch import write_batch
from forge.train.checkpoints import checkpoint_dir, write_manifest
from tests.store.storefactory import group, samples, small_run, write_run
from tests.views.terminals import told

EXPERIMENT = """\
name = "toy"
[prompt]
preset = "tiny"
[model]
init = "tiny"
[store]
min_free_bytes = 0
[[stage]]
kind = "eval"
[[stage]]
kind = "sft"
steps = 3
learning_rate = 1e-4
"""


def records() -> list[Record]:
    """Without the starts of stages, which name weights."""
    return [r for r in small_run() if not (isinstance(r, Event) and r.kind == "stage_start")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run that was killed after step 3 of its second stage, with a checkpoint of step 2."""
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, records())
    (root / "experiment.toml").write_text(EXPERIMENT)
    for folder in ("checkpoints/stage-1/checkpoint-1", "checkpoints/stage-1/checkpoint-2"):
        (root / folder).mkdir(parents=True)
        (root / folder / "model.pt").write_bytes(b"weights")
        write_manifest(root / folder)
    for folder in ("batches", "weights"):
        (root / folder).mkdir()
    return root


def found(root: Path) -> dict[str, tuple[Severity, str]]:
    """The worst finding of each name."""
    findings = sorted(examine_run(RunPaths(root)).findings, key=lambda f: f.severity != "ok")
    return {each.name: (each.severity, each.found) for each in findings}


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_whole_run_has_no_warning_and_is_not_changed(root, capsys):
    before = contents(root)
    printed = json.loads(told(capsys, "doctor", root, "--json"))
    assert printed["ok"]
    assert printed["resume"] == {"stage": "sft-1", "step": 2, "num_steps": 3, "repeated": 1}
    assert {each["severity"] for each in printed["findings"]} == {"ok"}
    assert contents(root) == before
    assert "sft-1 after step 2 of 3; again: step 3" in told(capsys, "doctor", root)


def test_a_run_that_runs_can_be_checked(root, capsys):
    with open_run_lock(RunPaths(root)):
        assert run_command(["doctor", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "running, attempt" in printed
    assert printed.endswith("a resume can start, once the run has ended\n")


def cut_rows(root: Path) -> None:
    older = root.parent / "older-1"
    anyio.run(write_run, older, records()[:10])
    shutil.copy(older / "run.db", root / "run.db")


def damage_batch(root: Path) -> None:
    path = root / "batches" / "1-000003.npz"
    write_batch(path, samples(group(1, [[Status.WRONG]]), first_id=0))
    os.truncate(path, 100)


def damage_checkpoints(root: Path, *steps: int) -> None:
    for step in steps:
        path = checkpoint_dir(root / "checkpoints" / "stage-1", step) / "model.pt"
        path.write_bytes(b"weighty")


def lose_verdicts(root: Path) -> None:
    with closing(sqlite3.connect(root / "run.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM verdicts WHERE group_id = 2")


WARNED: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing: ": (cut_rows, "rows"),
    "batches/1-000003.npz: ": (damage_batch, "batches"),
    "step 2: model.pt: ": (lambda root: damage_checkpoints(root, 2), "checkpoints of sft-1"),
    "3 turns without a verdict": (lose_verdicts, "rows"),
}


@pytest.mark.parametrize("words", WARNED)
def test_a_loss_with_which_a_resume_starts_is_a_warning(root, words):
    damage, name = WARNED[words]
    damage(root)
    severity, said = found(root)[name]
    assert severity is Severity.WARNING
    assert said.startswith(words)
    assert examine_run(RunPaths(root)).can_resume


def damage_page(root: Path) -> None:
    with open_run(root) as reader:
        page = reader.value("SELECT rootpage FROM main.sqlite_master WHERE name = 'turns'")
    with (root / "run.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)


def finish_and_lose_weights(root: Path) -> None:
    """A published version, the end of its stage, and no directory of it."""
    path = str(root / "weights/sft-3")
    rows = [
        PolicyVersion(
            version=9,
            attempt=1,
            stage=1,
            step=3,
            path=path,
            sha256="0" * 64,
            publish_s=1.0,
            probe_gap=0.0,
        ),
        Event(at=9.0, kind="stage_end", message="", data={"stage": 1}),
    ]
    anyio.run(write_run, root, rows)
    (root / "experiment.toml").write_text(EXPERIMENT)


def lose_weights_of_a_finished_stage(root: Path) -> None:
    finish_and_lose_weights(root)
    (root / "experiment.toml").write_text(EXPERIMENT + '[[stage]]\nkind = "eval"\n')


def test_a_finished_run_without_its_weights_has_a_warning(root):
    finish_and_lose_weights(root)
    assert found(root)["weights"][0] is Severity.WARNING
    assert examine_run(RunPaths(root)).can_resume


STOPPED: dict[str, Callable[[Path], object]] = {
    "run.db": damage_page,
    "tokens.db": lambda root: (root / "tokens.db").write_bytes(b"\xff" * 8192),
    "checkpoints of sft-1": lambda root: damage_checkpoints(root, 1, 2),
    "weights": lose_weights_of_a_finished_stage,
    "resume": lambda root: (root / "experiment.toml").write_text("name ="),
}


@pytest.mark.parametrize("name", STOPPED)
def test_damage_with_which_no_resume_starts_is_an_error_and_exit_3(root, name, capsys):
    STOPPED[name](root)
    assert run_command(["doctor", str(root)]) == 3
    assert "a resume could not start" in capsys.readouterr().out
    assert found(root)[name][0] is Severity.ERROR
