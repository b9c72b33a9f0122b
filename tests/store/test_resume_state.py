"""What a resumed run reads of its past."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from forge.records import Event, Sample
from forge.store.reader import open_run
from forge.store.resume import events, last_event, last_state, step_samples, untrained_samples
from tests.store.storefactory import attempt, small_run, use, write_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "toy-1"
    anyio.run(write_run, path, small_run())
    return path


def test_the_last_state_names_the_counters_to_go_on_from(root: Path) -> None:
    with open_run(root) as reader:
        state = last_state(reader)
    assert (state.attempt, state.group_id, state.sample_id, state.policy_version) == (1, 7, 17, 3)
    assert state.steps == {1: 3}
    assert state.finished_stages == (0,)
    assert [policy.version for policy in state.policies] == [3, 2, 1]


def test_a_run_that_never_started_has_an_empty_state(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, [])
    with open_run(root) as reader:
        state = last_state(reader)
    assert (state.attempt, state.group_id, state.sample_id, state.policy_version) == (0, -1, -1, -1)
    assert state.policies == ()
    assert state.finished_stages == ()


def expected_samples() -> list[Sample]:
    return [record for record in small_run() if isinstance(record, Sample)]


def assert_same(found: tuple[Sample, ...], expected: list[Sample]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs)
        names = ("sample_id", "group_id", "rollout", "turn", "prompt_ids", "completion_ids")
        assert all(getattr(ours, name) == getattr(theirs, name) for name in names)
        assert (ours.advantage, ours.policy_version) == (theirs.advantage, theirs.policy_version)


def test_untrained_samples_come_back_with_their_tokens(root: Path) -> None:
    with open_run(root) as reader:
        found = untrained_samples(reader, stage=1)
    assert found.num_without_tokens == 0
    assert_same(found.samples, expected_samples()[12:])


def test_samples_trained_past_the_checkpoint_are_offered_again(root: Path) -> None:
    with open_run(root) as reader:
        found = untrained_samples(reader, stage=1, after_step=1)
    assert_same(found.samples, expected_samples()[6:])


def test_the_batch_of_a_step_is_rebuilt_exactly(root: Path) -> None:
    with open_run(root) as reader:
        assert_same(step_samples(reader, stage=1, step=2), expected_samples()[6:12])


def test_a_step_that_two_attempts_trained_is_kept_twice_and_read_once(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, small_run())
    redone = [use(sample, step=2) for sample in expected_samples()[12:]]
    anyio.run(write_run, root, [attempt(2), *redone])
    with open_run(root) as reader:
        assert reader.value("SELECT count(*) FROM sample_uses WHERE step = 2") == 12
        assert_same(step_samples(reader, stage=1, step=2), expected_samples()[12:])


def test_events_come_back_with_their_data(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    marks = [Event(at=n, kind="checkpoint", message=f"step {n}", data={"step": n}) for n in (1, 2)]
    anyio.run(write_run, root, marks)
    with open_run(root) as reader:
        assert events(reader, kind="checkpoint") == marks
        assert last_event(reader, "checkpoint") == marks[1]
        assert last_event(reader, "none") is None
