"""Runs the workers of `forge data build` and reports their progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.commands.counter import open_counter
from forge.commands.data.worker import error_path, prepare_chunks, worker_config
from forge.data.build.output import origin_of
from forge.data.build.rows import RowChunk, RowFile, plan_chunks
from forge.data.build.shards import ShardFolder
from forge.errors import ConfigError
from forge.process.child import Child, ChildSpec, open_child
from forge.process.environment import child_env

if TYPE_CHECKING:
    from forge.commands.counter import Advance
    from forge.config.schema.build import DataBuild
    from forge.data.prompts.prompt_set import PromptSet

POLL_S = 0.05
SILENT_S = 600.0
"""Maximum time for a chunk of 64 rows."""
MAX_WORKERS = 16
FEW = 4
"""Chunks that are prepared in this process: starting another one takes longer."""


def prepare(
    build: DataBuild,
    files: Sequence[RowFile],
    prompts: PromptSet,
    *,
    folder: Path,
    workers: int | None,
    is_shown: bool,
) -> None:
    """Makes all shards that are missing.

    Raises:
        ConfigError: a file or tokenizer that cannot be read; with `input.strict`, the first broken
            row.
        ChildDied, Stalled: a worker ended or was silent.
    """
    shards = ShardFolder(path=folder)
    chunks = plan_chunks(files)
    missing = [chunk for chunk in chunks if not shards.has(chunk.number)]
    num = min(workers or min(len(os.sched_getaffinity(0)), MAX_WORKERS), len(missing))
    if len(missing) <= FEW:
        if missing:
            prepare_chunks(
                worker_config(build, files, prompts, folder=folder, worker=0, num_workers=1)
            )
        for chunk in chunks:
            _check_strict(build, shards, chunk, files)
        return
    anyio.run(
        partial(_run_workers, build, files, prompts, folder=folder, num=num, is_shown=is_shown)
    )


async def _run_workers(
    build: DataBuild,
    files: Sequence[RowFile],
    prompts: PromptSet,
    *,
    folder: Path,
    num: int,
    is_shown: bool,
) -> None:
    chunks = plan_chunks(files)
    num_rows = sum(file.num_rows for file in files)
    async with (
        open_counter("rows", total=num_rows, is_shown=is_shown) as advance,
        AsyncExitStack() as stack,
    ):
        children = [
            await stack.enter_async_context(
                open_child(_spec(build, files, prompts, folder=folder, worker=worker, num=num))
            )
            for worker in range(num)
        ]
        await _follow(build, files, chunks, children, folder=folder, advance=advance)


async def _follow(
    build: DataBuild,
    files: Sequence[RowFile],
    chunks: Sequence[RowChunk],
    children: Sequence[Child],
    *,
    folder: Path,
    advance: Advance,
) -> None:
    """Returns when every chunk has its shard."""
    shards = ShardFolder(path=folder)
    since = time.monotonic()
    for chunk in chunks:
        while not shards.has(chunk.number):
            owner = children[chunk.number % len(children)]
            if not owner.is_alive and not shards.has(chunk.number):
                failed = error_path(folder, chunk.number % len(children))
                if failed.is_file():
                    raise ConfigError(failed.read_text())
                raise owner.died(doing=f"preparing rows {chunk.first_row + 1} and following")
            if time.monotonic() - since > SILENT_S:
                raise owner.stalled(asked=f"chunk {chunk.number}", silent_s=SILENT_S)
            await anyio.sleep(POLL_S)
        since = time.monotonic()
        _check_strict(build, shards, chunk, files)
        for _ in range(chunk.stop - chunk.start):
            advance()


def _check_strict(
    build: DataBuild, shards: ShardFolder, chunk: RowChunk, files: Sequence[RowFile]
) -> None:
    """Raises ConfigError for the first broken row of a chunk with `input.strict`."""
    if not build.input.strict:
        return
    broken = [each for each in shards.facts(chunk.number).dropped if each.is_broken]
    if broken:
        first = min(broken, key=lambda each: each.number)
        said = f"{first.reason}: {first.detail}" if first.detail else first.reason
        raise ConfigError(
            f"input.path: {files[chunk.file].path.parent / origin_of(first.number, files)} "
            f'("{build.input.format}"): {said}'
        )


def _spec(
    build: DataBuild,
    files: Sequence[RowFile],
    prompts: PromptSet,
    *,
    folder: Path,
    worker: int,
    num: int,
) -> ChildSpec:
    return ChildSpec(
        name=f"worker-{worker}",
        argv=(sys.executable, "-m", "forge.commands.data.worker"),
        log_path=folder / f"worker-{worker}.log",
        env=child_env(threads=1),
        socket_path=None,
        config=worker_config(build, files, prompts, folder=folder, worker=worker, num_workers=num),
        stop_grace_s=0.5,
    )
