"""When the reference is started and timed for a baseline, and by whom. Needs no GPU."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import MAX_STARTED
from forge.evalpool.judge import gpu_yardsticks
from forge.evalpool.judge.baselines import Baseline, Baselines
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_yardsticks import Yardsticks
from forge.evalpool.judge.spares import Spare
from forge.evalpool.judge.spawner import SandboxedChild
from forge.evalpool.judge.trial.references import ReferenceFailed
from forge.evalpool.judge.trial.trial import Decided, Finding, Phases
from forge.records.verdict import Status
from tests.evalpool.benches import RELU, make_problem

if TYPE_CHECKING:
    from pathlib import Path

PROBLEM = make_problem(RELU)
STEADY = (10.0,) * 20
FAILED = Decided(Finding(status=Status.RUNTIME_ERROR, reason="exception", detail="its words"))


@dataclass
class Run:
    """Of a candidate, or of a reference: what is asked of it."""

    error: Exception | None = None
    is_started: bool = False
    is_closed: bool = False
    table: JudgeTable = field(default_factory=JudgeTable)
    phases: Phases = field(default_factory=Phases)
    gpu_reference: Any = "the draw"

    def start(self, entry_point: str, *, is_reference: bool) -> None:
        assert is_reference
        if self.error is not None:
            raise self.error
        self.is_started = True

    def close(self) -> None:
        self.is_closed = True


class Card:
    """Whose work takes so long."""

    identity, probe, memory_bytes = "card", 100.0, 141 << 30

    def probe_us(self) -> float:
        return self.probe


class Bench:
    """Yardsticks with a file of baselines, and all references that were opened."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Run] = []
        self.error: Exception | None = None
        self.card: Any = Card()
        self.baselines = Baselines(folder / "baselines.db")
        self.samples = [STEADY]
        opening: Any = self.open
        self.yardsticks = Yardsticks(
            opening, device=self.card, baselines=self.baselines, harness="h", uid=None
        )
        self.candidate: Any = Run()
        bench = self

        class Timer:
            def __init__(self, run: Run) -> None:
                assert run.is_started
                assert not run.is_closed

            @classmethod
            def start(cls, run: Run) -> Timer:
                return cls(run)

            def reference(self) -> tuple[float, ...]:
                return bench.samples.pop(0) if len(bench.samples) > 1 else bench.samples[0]

        monkeypatch.setattr(gpu_yardsticks, "Timer", Timer)

    def open(self, problem: Any, code: str, reference: Any, **_: Any) -> Run:
        self.opened.append(Run(error=self.error, gpu_reference=reference))
        return self.opened[-1]

    def started(self, problem: Any = PROBLEM) -> Any:
        return self.yardsticks.started(problem, self.candidate)

    def baseline(self, candidate: Any = None) -> Baseline:
        return self.yardsticks.baseline(PROBLEM, candidate or self.candidate)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_the_one_that_was_started_is_timed_and_ends(bench: Bench) -> None:
    with bench.started():
        (run,) = bench.opened
        assert run.is_started
        assert not run.is_closed
        assert bench.baseline().event_us == STEADY
        assert run.is_closed
    assert len(bench.opened) == 1
    assert bench.candidate.phases.seconds["baseline"] >= 0.0


def test_where_one_is_kept_none_is_started(bench: Bench) -> None:
    bench.baseline()
    with bench.started():
        assert len(bench.opened) == 1
    assert bench.baseline().event_us == STEADY
    assert [one.is_closed for one in bench.opened] == [True]


def test_a_sibling_that_comes_first_times_the_one_that_was_started(bench: Bench) -> None:
    with bench.started(), bench.started():
        assert bench.baseline(Run()).event_us == STEADY
        assert [one.is_closed for one in bench.opened] == [True]
        assert bench.baseline().event_us == STEADY
    assert len(bench.opened) == 1


def test_one_on_a_draw_that_a_sibling_may_let_go_of_is_left_to_that_sibling(bench: Bench) -> None:
    other: Any = Run(gpu_reference="another draw")
    with bench.started():
        bench.baseline(other)
        assert [one.is_closed for one in bench.opened] == [False, True]
        bench.baseline()
        assert bench.opened[0].is_closed, "alone on the card, though it is needless"


def test_one_that_torch_compiles_is_not_started_beside_others(bench: Bench) -> None:
    bench.candidate.table = JudgeTable(baseline="compile")
    with bench.started():
        assert bench.opened == []
        assert bench.baseline().event_us == STEADY


def test_all_that_wait_end_where_somebody_needs_the_room(bench: Bench) -> None:
    with bench.started():
        bench.yardsticks.end_started()
        assert [one.is_closed for one in bench.opened] == [True]
        assert bench.baseline().event_us == STEADY
    assert [one.is_closed for one in bench.opened] == [True, True]


def test_a_problem_is_started_once_and_few_at_a_time(bench: Bench) -> None:
    others = [make_problem(f"{RELU}# {number}") for number in range(MAX_STARTED)]
    with ExitStack() as held:
        for one in (PROBLEM, PROBLEM, *others):
            held.enter_context(bench.started(one))
        assert len(bench.opened) == MAX_STARTED
    with bench.started():
        assert len(bench.opened) == MAX_STARTED + 1, "the first has made room"


def test_on_a_small_card_none_waits(bench: Bench) -> None:
    bench.card.memory_bytes = 24 << 30
    with bench.started():
        assert not bench.opened
        assert bench.baseline().event_us == STEADY


@pytest.mark.parametrize("error", [FAILED, GpuMemoryError("full")])
def test_what_fails_beside_others_is_tried_alone(bench: Bench, error: Exception) -> None:
    bench.error = error
    with bench.started():
        bench.error = None
        assert bench.baseline().event_us == STEADY
    assert [one.is_closed for one in bench.opened] == [True, True]


def test_a_broken_driver_is_not_tried_again(bench: Bench) -> None:
    bench.error = GpuMemoryError("refused", code=999)
    with pytest.raises(GpuMemoryError, match="refused"), bench.started():
        pass
    assert [one.is_closed for one in bench.opened] == [True]


def test_one_that_fails_alone_is_the_references_fault(bench: Bench) -> None:
    bench.error = FAILED
    with pytest.raises(ReferenceFailed, match="its words"):
        bench.baseline()


def test_one_that_nobody_timed_ends(bench: Bench) -> None:
    with pytest.raises(KeyError), bench.started():
        raise KeyError
    assert [one.is_closed for one in bench.opened] == [True]
    with bench.started():
        assert len(bench.opened) == 2


def test_an_unsteady_one_is_measured_again_by_a_fresh_process(bench: Bench) -> None:
    noisy = tuple(range(10, 30))
    bench.samples = [noisy, STEADY]
    with bench.started():
        assert bench.baseline().event_us == STEADY
    assert len(bench.opened) == 2
    assert all(one.is_closed for one in bench.opened)


def test_the_judges_end_hangs_up_on_the_overheads_process(bench: Bench) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        bench.yardsticks.neutral = Spare(SandboxedChild(sock=ours, pid=1))
        bench.yardsticks.close()
        assert theirs.recv(1) == b""


def test_an_overheads_process_that_could_not_be_opened_is_not_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise GpuMemoryError("full")

    ended: Any = object()
    bench.yardsticks.neutral = ended
    monkeypatch.setattr(bench.yardsticks, "_open_run", full)
    with pytest.raises(GpuMemoryError):
        bench.yardsticks.dry_us(PROBLEM, bench.candidate)
    assert bench.yardsticks.neutral is None
