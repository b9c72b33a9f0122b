"""Results of chunks on disk: what survives a killed process, and what the choice reads.

    .build/key            what the shards were made of
    .build/000012.rows    the rows of a chunk that passed, JSON lines in zstd
    .build/000012.facts   their hashes and signatures, and the rows left out; written last

A shard is complete or absent, and only its key's settings and inputs make it. Killed processes are
covered, a machine without power is not: files are renamed, not flushed.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from forge.data.build.near import PERMUTATIONS
from forge.data.build.steps import Dropped, Prepared

LEVEL = 1
"""Compression of rows that live for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The facts of a chunk."""

    numbers: np.ndarray
    """Indices of its rows among all rows. [N]"""
    exact: list[int]
    modules: np.ndarray
    """[N, PERMUTATIONS]"""
    answers: np.ndarray
    """[N, PERMUTATIONS]"""
    digests: list[list[str]]
    """Normal forms of the code that each row asks for."""
    dropped: list[Dropped]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFolder:
    """The shards of a build."""

    path: Path

    def has(self, number: int) -> bool:
        """True if this chunk is done."""
        return self._facts(number).is_file()

    def write(self, number: int, outcomes: Sequence[Prepared | Dropped]) -> None:
        """Writes the results of a chunk."""
        kept = [each for each in outcomes if isinstance(each, Prepared)]
        dropped = [asdict(each) for each in outcomes if isinstance(each, Dropped)]
        lines = "".join(json.dumps(_row(each), ensure_ascii=False) + "\n" for each in kept)
        write_whole(self._rows(number), zstandard.compress(lines.encode(), LEVEL))
        file = io.BytesIO()
        np.savez(
            file,
            numbers=np.array([each.number for each in kept], dtype=np.int64),
            modules=_stacked([each.module for each in kept]),
            answers=_stacked([each.answer for each in kept]),
            rest=np.frombuffer(
                json.dumps(
                    [[f"{each.exact:x}" for each in kept], [each.digests for each in kept], dropped]
                ).encode(),
                np.uint8,
            ),
        )
        write_whole(self._facts(number), file.getvalue())

    def facts(self, number: int) -> Shard:
        """The facts of a chunk that is done."""
        with np.load(self._facts(number)) as file:
            exact, digests, dropped = json.loads(file["rest"].tobytes())
            return Shard(
                numbers=file["numbers"],
                exact=[int(each, 16) for each in exact],
                modules=file["modules"],
                answers=file["answers"],
                digests=digests,
                dropped=[Dropped(**each) for each in dropped],
            )

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """The rows of a chunk that is done."""
        data = zstandard.decompress(self._rows(number).read_bytes())
        for line in data.decode().split("\n")[:-1]:
            yield json.loads(line)

    def _rows(self, number: int) -> Path:
        return self.path / f"{number:06d}.rows"

    def _facts(self, number: int) -> Path:
        return self.path / f"{number:06d}.facts"


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is complete or absent."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    spare.write_bytes(data)
    spare.replace(path)


def _row(each: Prepared) -> dict[str, Any]:
    example = each.example
    return {
        "number": each.number,
        "id": example.problem_id,
        "messages": [asdict(message) for message in example.messages],
        "num_turns": example.num_turns,
        "num_tokens": each.num_tokens,
        "source": example.source,
        "entry_point": example.entry_point,
        "code": example.code,
    }


def _stacked(signatures: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(signatures) if signatures else np.empty((0, PERMUTATIONS), dtype=np.uint32)
