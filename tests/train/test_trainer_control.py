"""The trainer's client of control.sock."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.schema import GrpoStage
from forge.process.ask import Answer
from forge.records import Sample
from forge.train.batch import SampleHeader, read_batch, read_headers, write_batch
from forge.train.trainer.child import control
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from tests.train.trained import settings_of


def test_a_publish_may_take_as_long_as_the_settings_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def send(*_request: Any, server: str, timeout_s: float) -> Answer:
        waits.append(timeout_s)
        return Answer(status=200, content=b'{"version": 7}')

    monkeypatch.setattr(control, "send_blocking", send)
    stage = GrpoStage(kind="grpo", steps=1, learning_rate=1e-3)
    settings = settings_of(stage, tmp_path, tmp_path, publish_timeout_s=4200.0)
    client = SupervisorClient(settings, stop=StopFlag())
    assert client.publish(step=1, path=tmp_path, probe={}) == 7
    assert waits == [4200.0]


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


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"prompt": [1]}', b"\xff\x00"])
def test_a_damaged_file_of_tokens_is_replaced_by_new_ones(tmp_path: Path, content: bytes) -> None:
    from forge.train.trainer.publish.weights import Prober, read_tokens

    path = tmp_path / "probe.json"
    path.write_bytes(content)
    assert Prober(path, read_tokens(path)).take(model=None) is None
