"""Published weights: their digest, and those that a resumed attempt and `forge serve` load."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from forge.config.schema import Experiment, ModelTable, TrainStage
from forge.errors import ConfigError, MachineError
from forge.records import PolicyVersion
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import RunReader, open_run
from forge.store.resume import LastState, events, last_state
from forge.train.checkpoints import is_kept

PUBLISHED = re.compile(r"\.?(sft|grpo)-\d+")
"""Start of the names that trainers give to the directories they publish, whole or partial."""


BLOCK_BYTES = 64 << 10
"""Bytes that are read at a time. Each worker thread keeps what it once allocated from the heap, and
any of them may be the one that reads."""


def sha256_of_weights(path: Path) -> str:
    """Digest of all weight files of a directory, in name order; empty where there is none."""
    files = sorted(path.glob("*.safetensors"))
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK_BYTES))
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while size := stream.readinto(block):
                digest.update(block[:size])
    return digest.hexdigest() if files else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingWeights:
    weights: Weights
    step: int = 0
    last_version: int = 0
    strays: Sequence[Path] = ()
    """Unused directories that killed attempts left; deleted after the next publish."""


def find_starting_weights(
    start: Weights, state: LastState | None, experiment: Experiment, weights_dir: Path
) -> StartingWeights:
    """The newest published weights that are whole; without any, those of the run's start. Reads the
    newest ones completely: call it in a thread. Raises MachineError if those of a finished stage
    are missing or damaged; an unfinished stage publishes its checkpoint's again."""
    if state is None:
        return StartingWeights(weights=start)

    def keeps(policy: PolicyVersion) -> bool:
        stage = experiment.stage[policy.stage]
        assert isinstance(stage, TrainStage), "an evaluation publishes nothing"
        # A stage measured in epochs has steps = 0 here: sft keeps everything it publishes.
        steps, save_every = stage.steps, stage.save_every
        return not steps or is_kept(policy.step, steps=steps, save_every=save_every)

    weights_dir.mkdir(exist_ok=True)
    kept = {PurePath(policy.path).name for policy in state.policies if keeps(policy)}
    strays = [
        path
        for path in sorted(weights_dir.iterdir())
        if PUBLISHED.match(path.name) and path.name not in kept
    ]
    for policy in state.policies:
        path = weights_dir / PurePath(policy.path).name
        is_file = bool(policy.sha256)  # others were in a trainer's memory
        if is_file and path.is_dir() and sha256_of_weights(path) == policy.sha256:
            found = start.then(path, version=policy.version)
            last = state.policy_version
            return StartingWeights(
                weights=found, step=policy.step, last_version=last, strays=strays
            )
        if policy.stage in state.finished_stages:
            raise MachineError(
                f"{path}: the weights to resume from are missing or damaged; put a copy of them "
                "there, or begin a new run"
            )
    return StartingWeights(weights=start, last_version=max(state.policy_version, 0), strays=strays)


def load_stage_weights(reader: RunReader) -> dict[int, Weights]:
    return {
        event.data["stage"]: Weights.from_json(event.data["weights"], reader.path)
        for event in events(reader, kind="stage_start")
    }


def on_model(weights: Weights, model: ModelTable) -> Weights:
    """The weights on the experiment's model where it is now, which may be another place than when
    the stage began; `model` is located."""
    full, adapter = weights.full, weights.adapter
    if weights.full_version == 0 and model.path is not None:
        full = Path(model.path)
    if weights.version == 0 and adapter is not None:
        adapter = model.adapter
    return replace(weights, full=full, adapter=adapter)


def check_there(weights: Weights, *, whose: str, but_in: Path | None = None) -> Weights:
    """The weights, if their directories exist; those in `but_in` may be absent. Raises
    MachineError, which names the absent one."""
    for path in (weights.full, weights.adapter):
        if path is None or (but_in is not None and path.is_relative_to(but_in)):
            continue
        if not path.is_dir():
            raise MachineError(f"{path}: not there; {whose} needs these weights")
    return weights


def find_weights(paths: RunPaths, step: str) -> Weights:
    """The weights published after a step; for an empty `step` the newest ones that still exist, or
    those that the run began with. Raises ConfigError if there are none, with the steps that have
    some; MachineError if the model that they need is not there."""
    with open_run(paths) as reader:
        policies = last_state(reader).policies
        begun = list(load_stage_weights(reader).values())
    if not begun:
        raise ConfigError(f"{paths.name}: it has no model yet; its first stage has not begun")
    start = begun[0]
    kept = [each for each in policies if each.sha256 and Path(each.path).is_dir()]
    for policy in kept:
        if not step or str(policy.step) == step:
            found = start.then(Path(policy.path), version=policy.version)
            return check_there(found, whose=paths.name)
    if not policies and not step:
        return check_there(start, whose=paths.name)
    steps = ", ".join(str(policy.step) for policy in reversed(kept)) or "none"
    if not step:
        raise ConfigError(f"{paths.name}: none of its weights were kept")
    raise ConfigError(f"{paths.name}:{step}: no weights of that step were kept; there are: {steps}")


def require_weights(state: LastState, stage_weights: Mapping[int, Weights]) -> None:
    """Raise MachineError if published weights that an unfinished stage began with are missing or
    damaged. Reads them completely: call it in a thread."""
    published = {PurePath(policy.path).name: policy for policy in reversed(state.policies)}
    for index, weights in stage_weights.items():
        for path in filter(None, (weights.full, weights.adapter)):
            policy = published.get(path.name)
            if index in state.finished_stages or policy is None or policy.stage == index:
                continue
            if not path.is_dir() or sha256_of_weights(path) != policy.sha256:
                problem = "damaged" if path.is_dir() else "missing"
                raise MachineError(
                    f"{path}: {problem}; stage {index} began with these weights. Put a copy of "
                    "them back, or begin a new run"
                )
