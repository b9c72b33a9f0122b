"""The packed format of answers: a lossless round trip, and one-line errors for damage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.errors import MachineError
from forge.records import Completion, Finish
from forge.serve.engine.formats import choice, completion
from forge.serve.port import EngineSample, Request
from forge.serve.wire import pack, unpack

IDS = st.integers(0, 2**32 - 1)
LOGPROBS = st.floats(max_value=0, width=32, allow_nan=False)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(st.lists(IDS, max_size=40))
    return Completion(
        token_ids=tuple(ids),
        logprobs=tuple(draw(st.lists(LOGPROBS, min_size=len(ids), max_size=len(ids)))),
        finish=draw(st.sampled_from(Finish)),
        min_version=draw(st.integers(0, 2**40)),
        max_version=draw(st.integers(0, 2**40)),
    )


@given(st.lists(completions(), max_size=8))
def test_unpacking_inverts_packing(given_ones: list[Completion]) -> None:
    assert unpack(pack(given_ones)) == given_ones


@given(st.lists(completions(), min_size=1, max_size=3), st.data())
def test_an_answer_with_missing_or_extra_bytes_is_damaged(
    ones: list[Completion], data: st.DataObject
) -> None:
    content = pack(ones)
    cut = data.draw(st.integers(0, len(content) - 1))
    for damaged in (content[:cut], content + b"\0"):
        with pytest.raises(MachineError, match="damaged"):
            unpack(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_raise_machine_error_only(content: bytes) -> None:
    for tried in (content, b"FS1\0" + content):
        with pytest.raises(MachineError):
            unpack(tried)


@pytest.mark.parametrize(
    "header",
    [
        {"n": 0},
        [{"n": -1}, {"n": 1}],
        [{"n": 0}],
        [{"n": 0, "finish": "soon", "min_version": 0, "max_version": 0}],
        [{"n": 0, "finish": "stop", "min_version": float("inf"), "max_version": 0}],
        [{"n": None, "finish": "stop", "min_version": 0, "max_version": 0}],
        [3],
    ],
)
def test_an_invalid_header_is_damaged(header: object) -> None:
    words = json.dumps(header).encode()
    with pytest.raises(MachineError, match="damaged"):
        unpack(b"FS1\0" + len(words).to_bytes(4, "little") + words)


def test_json_and_packed_answers_have_the_same_numbers() -> None:
    request = Request(prompt=np.arange(3), n=1, max_tokens=9, temperature=1.0, seed=0)
    logprobs = np.random.default_rng(0).standard_normal(9).astype(np.float32)
    sample = EngineSample(
        request,
        0,
        tokens=np.arange(9, dtype=np.int32),
        logprobs=logprobs,
        versions=np.array([3, 3, 4, 4, 4, 4, 4, 4, 4]),
        finish=Finish.LENGTH,
    )
    (packed,) = unpack(pack([completion(sample)]))
    spelled = json.loads(json.dumps(choice(sample)))
    assert list(packed.token_ids) == spelled["token_ids"]
    assert list(packed.logprobs) == np.float32(spelled["logprobs"]["token_logprobs"]).tolist()
    assert (packed.min_version, packed.max_version) == (3, 4)
    assert np.abs(np.array(packed.logprobs) - logprobs).max() < 1e-7
