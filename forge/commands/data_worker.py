"""Workers of `forge data build`: each prepares every Nth chunk of rows and writes its shard.

A worker reads the input itself, so no row passes between processes. It ends with 0, or with 2 and
the message of a ConfigError in its error file. `prepare` starts them and follows their shards.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.counter import open_counter
from forge.config.schema.build import DataBuild
from forge.data.build.output import origin_of
from forge.data.build.rows import RowChunk, RowFile, plan_chunks, read_chunks
from forge.data.build.shards import ShardFolder, write_whole
from forge.data.build.steps import RowSteps, rewrite_answer
from forge.data.chat import ChatTemplate
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError
from forge.process.child import Child, ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.lease import hold_lease

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.counter import Advance

POLL_S = 0.05
SILENT_S = 600.0
"""Maximum time for a chunk of 64 rows."""
MAX_WORKERS = 16
FEW = 4
"""Chunks that are prepared in this process: starting another one takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """The rows of a build, and the folder that gets their shards."""

    build: DataBuild
    files: Sequence[RowFile]
    prompts: PromptSet
    folder: Path

    @property
    def shards(self) -> ShardFolder:
        """The shards in the folder."""
        return ShardFolder(path=self.folder)

    def config(self, worker: int, *, num_workers: int) -> dict[str, Any]:
        """The config of one worker, as JSON."""
        return {
            "build": self.build.model_dump(mode="json", exclude_none=True),
            "prompts": self.prompts.to_json(),
            "files": [asdict(file) | {"path": str(file.path)} for file in self.files],
            "folder": str(self.folder),
            "worker": worker,
            "num_workers": num_workers,
        }


def prepare(work: RowWork, *, workers: int | None, is_shown: bool) -> None:
    """Makes all shards that are missing.

    Raises:
        ConfigError: a file or tokenizer that cannot be read; with `input.strict`, the first broken
            row.
        ChildDied, Stalled: a worker ended or was silent.
    """
    chunks = plan_chunks(work.files)
    missing = [chunk for chunk in chunks if not work.shards.has(chunk.number)]
    if len(missing) <= FEW:
        if missing:
            prepare_chunks(work.config(0, num_workers=1))
        for chunk in chunks:
            _check_strict(work, chunk)
        return
    num = min(workers or min(len(os.sched_getaffinity(0)), MAX_WORKERS), len(missing))
    anyio.run(partial(_run_workers, work, chunks, num=num, is_shown=is_shown))


async def _run_workers(
    work: RowWork, chunks: Sequence[RowChunk], *, num: int, is_shown: bool
) -> None:
    num_rows = sum(file.num_rows for file in work.files)
    async with (
        open_counter("rows", total=num_rows, is_shown=is_shown) as advance,
        AsyncExitStack() as stack,
    ):
        children = [
            await stack.enter_async_context(open_child(_spec(work, worker, num=num)))
            for worker in range(num)
        ]
        await _follow(work, chunks, children, advance)


async def _follow(
    work: RowWork, chunks: Sequence[RowChunk], children: Sequence[Child], advance: Advance
) -> None:
    """Returns when every chunk has its shard."""
    shards = work.shards
    since = time.monotonic()
    for chunk in chunks:
        while not shards.has(chunk.number):
            owner = children[chunk.number % len(children)]
            if not owner.is_alive and not shards.has(chunk.number):
                failed = _error_path(work.folder, chunk.number % len(children))
                if failed.is_file():
                    raise ConfigError(failed.read_text())
                raise owner.died(doing=f"preparing rows {chunk.first_row + 1} and following")
            if time.monotonic() - since > SILENT_S:
                raise owner.stalled(asked=f"chunk {chunk.number}", silent_s=SILENT_S)
            await anyio.sleep(POLL_S)
        since = time.monotonic()
        _check_strict(work, chunk)
        for _ in range(chunk.stop - chunk.start):
            advance()


def _check_strict(work: RowWork, chunk: RowChunk) -> None:
    """Raises ConfigError for the first broken row of a chunk with `input.strict`."""
    source = work.build.input
    if not source.strict:
        return
    broken = [each for each in work.shards.facts(chunk.number).dropped if each.is_broken]
    if broken:
        first = min(broken, key=lambda each: each.number)
        said = f"{first.reason}: {first.detail}" if first.detail else first.reason
        place = work.files[chunk.file].path.parent / origin_of(first.number, work.files)
        raise ConfigError(f'input.path: {place} ("{source.format}"): {said}')


def _spec(work: RowWork, worker: int, *, num: int) -> ChildSpec:
    return ChildSpec(
        name=f"worker-{worker}",
        argv=(sys.executable, "-m", "forge.commands.data_worker"),
        log_path=work.folder / f"worker-{worker}.log",
        env=child_env(threads=1),
        socket_path=None,
        config=work.config(worker, num_workers=num),
        stop_grace_s=0.5,
    )


def _error_path(folder: Path, worker: int) -> Path:
    """The file with the message of a worker's ConfigError."""
    return folder / f"worker-{worker}.error"


def load_chat(build: DataBuild) -> ChatTemplate | None:
    """The chat template that lengths are counted with. Raises ConfigError of one line."""
    table = build.tokenizer
    if not build.filters.length or table.path is None:
        return None
    try:
        thinking = build.prompt.thinking
        return ChatTemplate.load(table.path, chat_template=table.chat_template, thinking=thinking)
    except ConfigError as error:
        text = str(error).replace("[model]", "[tokenizer]")
        raise ConfigError(f"tokenizer.path: {text}") from None


def prepare_chunks(config: Mapping[str, Any]) -> None:
    """Prepares a worker's chunks that have no shard yet. Raises ConfigError."""
    build = DataBuild.model_validate(config["build"])
    files = [RowFile(**file | {"path": Path(file["path"])}) for file in config["files"]]
    shards = ShardFolder(path=Path(config["folder"]))
    steps = RowSteps(
        build=build,
        prompts=PromptSet.from_json(config["prompts"]),
        chat=load_chat(build),
        rewriter=rewrite_answer if build.input.rewrite else None,
    )
    own = [
        chunk
        for chunk in plan_chunks(files)
        if chunk.number % config["num_workers"] == config["worker"] and not shards.has(chunk.number)
    ]
    for index, file in enumerate(files):
        for chunk, rows in read_chunks(file, [chunk for chunk in own if chunk.file == index]):
            outcomes = [
                steps(row, number=number) for number, row in enumerate(rows, chunk.first_row)
            ]
            shards.write(chunk.number, outcomes)


def main() -> None:
    """Runs one worker."""
    config = hold_lease()
    gc.disable()  # syntax trees have no cycles; the collector's passes take half of their time
    try:
        prepare_chunks(config)
    except ConfigError as error:
        write_whole(_error_path(Path(config["folder"]), config["worker"]), str(error).encode())
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
