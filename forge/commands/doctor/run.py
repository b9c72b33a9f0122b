"""`forge doctor RUN`: checks a run's databases, rows and files, and says what a resume would do.

Reads only, also while the run's supervisor works. An error means that a resume could not start; a
warning, that something is lost, damaged or done again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forge.commands.doctor.probe import Finding, can_run, error, to_json, warning
from forge.config.load import load_experiment
from forge.config.schema import Experiment, TrainStage
from forge.errors import ConfigError, ForgeError, MachineError
from forge.runner.past import HeldRows, hold_rows, name_steps
from forge.runner.weights.resume import find_starting_weights, load_stage_weights
from forge.serve.weights import Weights
from forge.store.layout import RunPaths, is_owned
from forge.store.reader import RunReader, find_faults, open_run
from forge.train.batch import BadBatch, read_headers
from forge.train.checkpoints import checkpoints, find_damage, find_resume_point
from forge.views.run_state import run_state
from forge.views.text import size

DANGLING = {
    "turns without a verdict": "turns a WHERE NOT EXISTS (SELECT 1 FROM verdicts b WHERE "
    "b.group_id = a.group_id AND b.rollout = a.rollout AND b.turn = a.turn)",
    "turns without their answer": "turns a WHERE completion_id IS NOT NULL AND NOT EXISTS "
    "(SELECT 1 FROM main.texts b WHERE b.text_id = a.completion_id)",
    "samples without their turn": "samples a WHERE NOT EXISTS (SELECT 1 FROM turns b WHERE "
    "b.group_id = a.group_id AND b.rollout = a.rollout AND b.turn = a.turn)",
    "uses without their sample": "sample_uses a WHERE NOT EXISTS (SELECT 1 FROM samples b WHERE "
    "b.sample_id = a.sample_id)",
}
"""Kind of a row that refers to nothing, and the rows of that kind."""

_TRAINED = """
SELECT max(step) FROM (SELECT step FROM sample_uses WHERE stage = :stage
    UNION ALL SELECT step FROM metrics WHERE stage = :stage AND key LIKE 'train/%')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextWork:
    stage: str
    step: int
    """Step of the checkpoint that it continues from; 0 for the start of the stage."""
    num_steps: int
    """0 if the stage has none, or measures them in epochs."""
    repeated: int
    """Trained steps after the checkpoint, which are trained again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckup:
    findings: Sequence[Finding]
    next_work: NextWork | None
    """None if the run has finished, or cannot be read."""
    is_running: bool = False

    @property
    def can_resume(self) -> bool:
        return can_run(self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            **to_json(self.findings),
            "resume": None if self.next_work is None else asdict(self.next_work),
        }


def examine_run(paths: RunPaths) -> RunCheckup:
    """Runs all checks. Reads the whole databases and the newest weights."""
    findings, next_work = [_directory(paths), *_databases(paths)], None
    try:
        with open_run(paths) as reader:
            experiment = load_experiment(paths.experiment)
            free, least = shutil.disk_usage(paths.root).free, experiment.store.min_free_bytes
            if free < least:
                found = f"{size(free)} free, [store] min_free_bytes is {size(least)}"
                findings.append(error("disk", found, fix="free some space"))
            else:
                findings.append(Finding(name="disk", found=f"{size(free)} free"))
            held = hold_rows(reader, experiment.stage)
            next_work = _next_work(reader, experiment, held)
            attempt = reader.value("SELECT max(attempt) FROM attempts") or 0
            state = Finding(name="state", found=f"{run_state(reader)}, attempt {attempt}")
            findings += [state, *_rows(reader, held), *_batches(paths)]
            findings += _checkpoints(paths, experiment, held)
            weights = _weights(reader, experiment, held, is_finished=next_work is None)
            findings += [weights, _resume(next_work)]
    except (ForgeError, sqlite3.Error, OSError) as failure:
        findings.append(error("resume", str(failure), fix=""))
    return RunCheckup(findings=findings, next_work=next_work, is_running=is_owned(paths))


def _directory(paths: RunPaths) -> Finding:
    if os.access(paths.root, os.W_OK | os.X_OK):
        return Finding(name="directory", found=str(paths.root))
    fix = "a run is resumed where it can be written"
    return error("directory", f"{paths.root}: cannot be written", fix=fix)


def _databases(paths: RunPaths) -> Iterator[Finding]:
    fixes = {
        paths.run_db: "put a copy of it there, without a run.db-wal; a resume says what it lacks",
        paths.tokens_db: "move it and its -wal away: a new one is made at the next resume",
    }
    for path, fix in fixes.items():
        if not path.exists():
            yield warning(path.name, "absent", fix="a new one is made at the next resume")
            continue
        try:
            faults = find_faults(path)
        except MachineError as failure:
            faults = [str(failure)]
        except (ConfigError, sqlite3.Error) as failure:
            yield error(path.name, str(failure), fix="")
            continue
        if faults:
            yield error(path.name, f"damaged: {'; '.join(faults)}", fix=fix)
        else:
            yield Finding(name=path.name, found=f"whole, {size(path.stat().st_size)}")


def _rows(reader: RunReader, held: HeldRows) -> Iterator[Finding]:
    if held.is_whole:
        yield Finding(name="rows", found="all that were recorded")
    else:
        fix = "put the run.db with its run.db-wal back, or go on: their ids are not used again"
        yield warning("rows", f"missing: {held.describe()}", fix=fix)
    for kind, rows in DANGLING.items():
        if number := reader.value(f"SELECT count(*) FROM {rows}"):
            yield warning("rows", f"{number} {kind}", fix="views leave them out")


def _batches(paths: RunPaths) -> Iterator[Finding]:
    files, num_whole = sorted(paths.batches.glob("*.npz")), 0
    for path in files:
        try:
            read_headers(path)
            num_whole += 1
        except BadBatch as failure:
            fix = "none needed: its step is played again, or an older checkpoint continued"
            yield warning("batches", str(failure), fix=fix)
    yield Finding(name="batches", found=f"{num_whole} whole")


def _checkpoints(paths: RunPaths, experiment: Experiment, held: HeldRows) -> Iterator[Finding]:
    for index, stage in enumerate(experiment.stage):
        folder, name = paths.checkpoints / f"stage-{index}", f"checkpoints of {stage.label(index)}"
        damages = {step: find_damage(path) for step, path in checkpoints(folder).items()}
        whole = [step for step, damage in damages.items() if not damage]
        is_needed = index not in held.state.finished_stages and bool(damages)
        for step, damage in damages.items():
            found = f"step {step}: {damage}"
            if is_needed and not whole:
                yield error(name, found, fix="put a copy of it there")
            elif damage:
                yield warning(name, found, fix="none needed: an older or newer one is used")
        if whole:
            yield Finding(name=name, found=f"whole: {', '.join(map(str, whole))}")


def _weights(
    reader: RunReader, experiment: Experiment, held: HeldRows, *, is_finished: bool
) -> Finding:
    """The weights that engines start with. A run that has finished starts none."""
    begun, paths = load_stage_weights(reader), reader.paths
    start = begun[min(begun)] if begun else Weights(full=paths.weights)
    try:
        found = find_starting_weights(start, held.state, experiment, paths.weights)
    except MachineError as failure:
        return (warning if is_finished else error)("weights", str(failure), fix="")
    version = found.weights.version
    words = f"version {version}, of step {found.step}" if version else "those of the run's start"
    return Finding(name="weights", found=words)


def _next_work(reader: RunReader, experiment: Experiment, held: HeldRows) -> NextWork | None:
    for index, stage in enumerate(experiment.stage):
        if index in held.state.finished_stages:
            continue
        step = find_resume_point(reader.paths.checkpoints / f"stage-{index}").step
        trained = reader.value(_TRAINED, {"stage": index}) or 0
        return NextWork(
            stage=stage.label(index),
            step=step,
            num_steps=stage.steps if isinstance(stage, TrainStage) else 0,
            repeated=max(0, trained - step),
        )
    return None


def _resume(work: NextWork | None) -> Finding:
    if work is None:
        return Finding(name="a resume does", found="nothing: the run has finished")
    found = f"{work.stage} from its start"
    if work.step:
        found = f"{work.stage} after step {work.step} of {work.num_steps}"
    if again := range(work.step + 1, work.step + 1 + work.repeated):
        found = f"{found}; again: {name_steps(again)}"
    return Finding(name="a resume does", found=found)
