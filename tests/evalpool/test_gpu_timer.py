"""Timing by frames, against a scripted runner: what is asked in secret, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from forge.evalpool.judge import clock, gpu_timer
from forge.evalpool.judge.gpu_timer import MIN_CALLS, NUM_COUNTED, NUM_SHOWN, Timer
from forge.evalpool.judge.trial.trial import Decided, Finding

if TYPE_CHECKING:
    from forge.records.verdict import Status

CALL_S = 0.002


class Ticking:
    """A clock that only calls move: what is measured does not depend on the machine's load."""

    def __init__(self) -> None:
        self.ns = 0

    def perf_counter_ns(self) -> int:
        return self.ns

    def monotonic(self) -> float:
        return self.ns / 1e9


CLOCK = Ticking()


@pytest.fixture(autouse=True)
def _ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timer, "time", CLOCK)


@dataclass
class Scripted:
    """Stands for a GpuRun: each call takes CALL_S and gives the scripted answer."""

    honest: dict[str, Any] = field(
        default_factory=lambda: {"event_us": 1000 * CALL_S * 1e3, "num_launches": 1}
    )
    script: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Number of a call to the differences of its answer."""
    loaded: list[object] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    checked: list[int] = field(default_factory=list)
    counted: int = 0

    def __post_init__(self) -> None:
        self.table = SimpleNamespace(timing_timeout_s=30.0)
        self.device = SimpleNamespace(flush=lambda: None)
        self.gpu_memory = SimpleNamespace(
            load=self.loaded.append, load_mixed=lambda *pair: self.loaded.append(pair)
        )
        self.gpu_reference = SimpleNamespace(request={"slots": [1]}, unseen=[2, 3], to_mix=(2, 3))

    def ask(self, kind: object, body: dict[str, Any], **named: object) -> Any:
        self.asked.append(body)
        if not body["dry"]:
            CLOCK.ns += int(CALL_S * 1e9)
        return SimpleNamespace(body={**self.honest, **self.script.get(len(self.asked), {})})

    def finding(self, status: Status, reason: str, detail: str = "") -> Finding:
        return Finding(status=status, reason=reason, detail=detail)

    def note_work(self, done: dict[str, Any]) -> None:
        self.counted += 1

    def note_replays(self, done: dict[str, Any]) -> None: ...

    def require_form(self, done: dict[str, Any]) -> None: ...

    def require_little_torch(self) -> None: ...

    def require_right(self, number: int, done: dict[str, Any]) -> None:
        self.checked.append(number)


def timed(run: Any) -> clock.Clocked:
    return Timer.start(run).candidate(dry_us=(0.0,) * 10, floor_us=0.0)


def test_unseen_sets_are_checked_at_places_that_change() -> None:
    places = set()
    for _ in range(3):
        run = Scripted()
        timed(run)
        assert sorted(run.checked) == sorted([2, 3] * NUM_SHOWN)
        assert run.counted == NUM_COUNTED
        num_mixed = sum(one == (2, 3) for one in run.loaded)
        assert num_mixed >= MIN_CALLS
        assert 0 not in run.loaded
        places.add(tuple(place for place, one in enumerate(run.loaded) if one != (2, 3)))
    assert len(places) > 1


def test_times_of_counted_calls_are_thrown_away() -> None:
    run = Scripted()
    found = timed(run)
    num_timed = sum(not body["counted"] for body in run.asked)
    assert len(found.samples_us) < num_timed
    assert sum(body["counted"] for body in run.asked) == NUM_COUNTED


def test_a_timed_call_without_a_kernel_is_refused() -> None:
    run = Scripted(script={12: {"num_launches": 0}})
    with pytest.raises(Decided) as decided:
        timed(run)
    assert decided.value.finding.reason == "no_kernel_launch"


@pytest.mark.parametrize("event_us", [None, "1", True, -1.0, 10**400, float("inf")])
def test_what_is_no_time_is_unsupported(event_us: object) -> None:
    run = Scripted(honest={"event_us": event_us, "num_launches": 1})
    with pytest.raises(clock.Unsupported):
        timed(run)


def test_a_replayed_graph_is_a_launch() -> None:
    run = Scripted(honest={"event_us": CALL_S * 1e6, "num_launches": 0, "num_replays": 1})
    assert timed(run).us > 0


def test_dry_calls_load_what_is_known_and_run_nothing() -> None:
    run: Any = Scripted()
    assert len(Timer.start(run).dry()) > 10
    assert all(body["dry"] for body in run.asked)
