"""The reward function of a run: tried before the run begins, opened for its stages, its file
recorded. Where an attempt finds another file than the last attempt, it says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from forge.config.schema import Experiment
from forge.records import Event
from forge.rollout.ports import Scorer
from forge.rollout.rewards.scorer import FunctionFile, open_scorer, try_function
from forge.runner.plan.placement import Placement, needs_serving
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import events

KIND = "reward_function"
HASH_DIGITS = 12


def require_function(experiment: Experiment, placement: Placement) -> None:
    """Call `reward.function` once on made verdicts, if a stage needs it. Raises ConfigError,
    Stalled or ChildDied with a line of its file."""
    if experiment.reward.function is not None and needs_serving(experiment):
        anyio.run(partial(try_function, experiment.reward, is_timed=bool(placement.judge)))


@asynccontextmanager
async def open_run_scorer(run: RunContext) -> AsyncGenerator[Scorer]:
    """The scorer of the run, whose file is recorded; a changed one is shown."""
    async with open_scorer(
        run.experiment.reward, socket_dir=run.socket_dir, log_dir=run.log_dir, observer=run.observer
    ) as (scorer, file):
        before = await anyio.to_thread.run_sync(_recorded, run.paths)
        event = to_event(file, before=before)
        if event is not None:
            if before:
                run.console.say(event.message)
            await run.writer.put(event)
        yield scorer


def to_event(file: FunctionFile, *, before: Mapping[str, Any]) -> Event | None:
    """The event that records a file; None if it is recorded already. `before`: data of the last
    such event."""
    data = file.to_json()
    if data == dict(before):
        return None
    digest = file.sha256[:HASH_DIGITS]
    message = f"reward.function: {file.path}:{file.name}, sha256 {digest}"
    if before.get("sha256", file.sha256) != file.sha256:
        old = str(before["sha256"])[:HASH_DIGITS]
        message += f"; it has changed since the last attempt ({old}): earlier rewards are kept"
    elif before:
        message += f"; it was {before.get('file')}:{before.get('function')}"
    return Event(at=time.time(), kind=KIND, message=message, data=data)


def _recorded(paths: RunPaths) -> Mapping[str, Any]:
    """Data of the last event that recorded a file; empty if there is none."""
    with open_run(paths) as reader:
        found = events(reader, kind=KIND)
    return found[-1].data if found else {}
