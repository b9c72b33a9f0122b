"""Batch files return the samples that were written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forge.records import Sample
from forge.train.batch import SampleHeader, read_batch, read_headers, write_batch

ids = st.lists(st.integers(0, 200_000), max_size=6).map(tuple)
logprobs32 = st.floats(-50, 0, width=32)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    completion = draw(ids)
    return Sample(
        sample_id=draw(st.integers(0, 2**40)),
        group_id=draw(st.integers(0, 2**40)),
        rollout=draw(st.integers(0, 15)),
        turn=draw(st.integers(0, 15)),
        prompt_ids=draw(ids),
        completion_ids=completion,
        logprobs=tuple(draw(logprobs32) for _ in completion),
        advantage=draw(st.floats(-5, 5)),
        policy_version=draw(st.integers(0, 1000)),
    )


@given(batch=st.lists(samples(), max_size=4))
def test_a_batch_is_read_as_it_was_written(batch: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "batch.npz")
        write_batch(path, batch)
        assert read_batch(path) == batch
        assert read_headers(path) == [SampleHeader.of(sample) for sample in batch]
        assert [p.name for p in Path(folder).iterdir()] == ["batch.npz"]
