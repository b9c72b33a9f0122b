"""Batch files: the samples of a batch as one .npz file of flat arrays and offsets, and the
producer's state after the batch.

Written by the supervisor, which names the file in its answer to `take`; read by the GRPO trainer;
kept while a kept checkpoint may need it. A file is complete or absent, and reading returns what was
written, with logprobs rounded to f32, or raises: each array has a checksum.
"""

from __future__ import annotations

import itertools
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import MachineError
from forge.records import Sample

if TYPE_CHECKING:
    import numpy as np

_INTS = ("sample_id", "group_id", "rollout", "turn", "policy_version")
_FLOATS = ("advantage",)
_TOKENS = ("prompt_ids", "prompt_offsets", "completion_ids", "completion_offsets", "logprobs")


class BadBatch(MachineError):
    """A batch file that is missing or damaged. The message begins with its place in the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHeader:
    """The scalars of a sample, without its tokens."""

    sample_id: int
    group_id: int
    rollout: int
    turn: int
    policy_version: int
    advantage: float

    @classmethod
    def of(cls, sample: Sample) -> SampleHeader:
        return cls(**{name: getattr(sample, name) for name in (*_INTS, *_FLOATS)})


def write_batch(
    path: Path, samples: Sequence[Sample], *, state: Mapping[str, Any] | None = None
) -> None:
    """Write the samples, in order, and the state under a temporary name, then rename the file."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {
        name: np.array([getattr(s, name) for s in samples], dtype=np.int64) for name in _INTS
    }
    arrays["advantage"] = np.array([s.advantage for s in samples], dtype=np.float64)
    flat = itertools.chain.from_iterable
    for name in ("prompt", "completion"):
        lists: list[Sequence[int]] = [getattr(s, f"{name}_ids") for s in samples]
        arrays[f"{name}_ids"] = np.fromiter(flat(lists), dtype=np.int32)
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    arrays["logprobs"] = np.fromiter(flat(s.logprobs for s in samples), dtype=np.float32)
    arrays["state"] = np.frombuffer(json.dumps(dict(state or {})).encode(), dtype=np.uint8)
    assert len(arrays["logprobs"]) == len(arrays["completion_ids"]), "one logprob per token"
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def read_batch(path: Path) -> list[Sample]:
    """The samples of a file, in the order they were written. Raises BadBatch."""
    found = _read(path)
    scalars = {name: found[name].tolist() for name in (*_INTS, *_FLOATS)}
    prompts = _cut(found["prompt_ids"], found["prompt_offsets"])
    completions = _cut(found["completion_ids"], found["completion_offsets"])
    logprobs = _cut(found["logprobs"], found["completion_offsets"])
    return [
        Sample(
            **{name: values[i] for name, values in scalars.items()},
            prompt_ids=prompts[i],
            completion_ids=completions[i],
            logprobs=logprobs[i],
        )
        for i in range(len(prompts))
    ]


def read_headers(path: Path) -> list[SampleHeader]:
    """The headers of a file's samples, in order. Checks the whole file. Raises BadBatch."""
    found = _read(path)
    names = (*_INTS, *_FLOATS)
    rows = zip(*(found[name].tolist() for name in names), strict=True)
    return [SampleHeader(**dict(zip(names, row, strict=True))) for row in rows]


def read_state(path: Path) -> dict[str, Any]:
    return json.loads(_read(path)["state"].tobytes())


def _read(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    place = f"{path.parent.name}/{path.name}"
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            return {name: file[name] for name in (*_INTS, *_FLOATS, *_TOKENS, "state")}
    except FileNotFoundError:
        raise BadBatch(f"{place}: missing") from None
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError) as error:
        raise BadBatch(f"{place}: damaged ({error})") from error


def _cut(flat: np.ndarray, offsets: np.ndarray) -> list[tuple[Any, ...]]:
    values, ends = flat.tolist(), offsets.tolist()
    return [tuple(values[a:b]) for a, b in itertools.pairwise(ends)]
