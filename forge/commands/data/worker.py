"""Child of `forge data build`: prepares every Nth chunk and writes its shard.

It reads the input itself, so no row passes between processes. Ends with 0, or with 2 and the
message of a ConfigError in its error file.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forge.config.schema.build import DataBuild
from forge.data.build.rewriting import rewrite_answer
from forge.data.build.rows import RowFile, plan_chunks, read_chunks
from forge.data.build.shards import ShardFolder, write_whole
from forge.data.build.steps import RowSteps
from forge.data.chat import ChatTemplate
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError
from forge.process.lease import hold_lease


def worker_config(
    build: DataBuild,
    files: Sequence[RowFile],
    prompts: PromptSet,
    *,
    folder: Path,
    worker: int,
    num_workers: int,
) -> dict[str, Any]:
    """The config of one worker, as JSON."""
    return {
        "build": build.model_dump(mode="json", exclude_none=True),
        "prompts": prompts.to_json(),
        "files": [asdict(file) | {"path": str(file.path)} for file in files],
        "folder": str(folder),
        "worker": worker,
        "num_workers": num_workers,
    }


def error_path(folder: Path, worker: int) -> Path:
    """The file with the message of a worker's ConfigError."""
    return folder / f"worker-{worker}.error"


def load_chat(build: DataBuild) -> ChatTemplate | None:
    """The chat template that lengths are counted with. Raises ConfigError of one line."""
    if not build.filters.length or build.tokenizer.path is None:
        return None
    try:
        return ChatTemplate.load(build.tokenizer.path)
    except ConfigError as error:
        raise ConfigError(f"tokenizer.path: {error}") from None
    except Exception as error:  # `tokenizers` raises Exception for a broken file
        text = str(error).splitlines()
        raise ConfigError(
            f"tokenizer.path: {build.tokenizer.path}: {text[0] if text else error!r}"
        ) from None


def prepare_chunks(config: Mapping[str, Any]) -> None:
    """Prepares a worker's chunks that have no shard yet. Raises ConfigError."""
    build = DataBuild.model_validate(config["build"])
    files = [_row_file(file) for file in config["files"]]
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


def _row_file(file: dict[str, Any]) -> RowFile:
    return RowFile(
        path=Path(file["path"]),
        name=file["name"],
        num_rows=file["num_rows"],
        sha256=file["sha256"],
    )


def main() -> None:
    """Runs one worker."""
    config = hold_lease()
    gc.disable()  # syntax trees have no cycles; the collector's passes take half of their time
    try:
        prepare_chunks(config)
    except ConfigError as error:
        write_whole(error_path(Path(config["folder"]), config["worker"]), str(error).encode())
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
