"""Runners made ahead of their candidates: when they are made, who gets them, when they end."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from forge.errors import Stalled
from forge.evalpool.capacity import CONTEXT_BYTES, GPU_CAPACITY, num_oracles, num_ready
from forge.evalpool.judge import frames, ready
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.proof import WeakSandbox
from forge.evalpool.judge.ready import MAX_IDLE_S, REST_S, ReadyRunners, make_ready
from forge.evalpool.judge.sandbox import Isolation
from forge.evalpool.judge.spares import Spares
from forge.evalpool.judge.spawner import SandboxedChild, ZygoteGone
from forge.process.gpu_lease import GpuLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTEXT, LET_GO = {"context": True}, {"let_go": True}
NUM = 2
TIMEOUT_S = 5.0


class Zygote:
    """Forks runners that do as they are asked, until killed or replaced."""

    isolation = Isolation.NAMESPACES

    def __init__(self) -> None:
        self.generation = 0
        self.uids: list[int | None] = []
        self.ended: list[int] = []
        self.told: list[dict[str, Any]] = []
        self.answer = Kind.DONE
        self.error: Exception | None = None
        self.while_made: Callable[[], object] = lambda: None
        self.was_asked = threading.Event()
        self._ours: list[socket.socket] = []
        self._theirs: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def spawn(self, *, role: str, uid: int | None) -> SandboxedChild:
        self.uids.append(uid)
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        ours, theirs = socket.socketpair()
        self._ours.append(ours)
        self._theirs.append(theirs)
        self._threads.append(threading.Thread(target=self._serve, args=(theirs,)))
        self._threads[-1].start()
        return SandboxedChild(sock=ours, pid=len(self._theirs), generation=self.generation)

    def is_current(self, child: SandboxedChild) -> bool:
        return child.generation == self.generation

    def end(self, child: SandboxedChild) -> int:
        child.sock.close()
        self.ended.append(child.pid)
        return 0

    def kill(self, child: SandboxedChild) -> None:
        self._theirs[child.pid - 1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for ours in self._ours:
            ours.close()
        for thread in self._threads:
            thread.join()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while True:
                    deadline = time.monotonic() + 60
                    asked = frames.receive(sock, deadline=deadline, expected=(Kind.CALL,)).body
                    self.told.append(asked)
                    if asked == CONTEXT:
                        self.while_made()
                    body = {"type": "RuntimeError", "message": "out of memory"}
                    frames.send(sock, self.answer, body)
            except (frames.PeerGone, OSError):
                return


class Bench:
    """A zygote, a card, and a clock that stands. The thread is run by hand, but where started."""

    def __init__(self, folder: Path) -> None:
        self.zygote = Zygote()
        self.lease = GpuLease("GPU-1", folder=folder)
        self.now = 1000.0
        spawner: Any = self.zygote
        self.spares = Spares(spawner, uids=(10, 11, 12))
        self.told_idle: list[bool] = []
        """Whether the card was free to others' timing, at each time."""
        self.ready = ReadyRunners(
            self.spares,
            spawner=spawner,
            lease=self.lease,
            num=NUM,
            on_idle=lambda: self.told_idle.append(self.is_free()),
            clock=lambda: self.now,
        )

    @property
    def num_waiting(self) -> int:
        return len(self.ready._waiting)

    def refill(self, *, num_judging: int = 1) -> None:
        with ExitStack() as judging:
            for _ in range(num_judging):
                judging.enter_context(self.ready.judging())
            for _ in range(NUM + 1):
                self.ready.step()

    def is_free(self) -> bool:
        try:
            with self.lease.exclusive(timeout_s=0.0):
                return True
        except Stalled:
            return False


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path)
    yield opened
    opened.ready.close()
    for thread in threading.enumerate():
        if thread.name == "ready":
            thread.join(TIMEOUT_S)
    opened.zygote.close()


def test_one_is_given_once_and_was_nobodys_before(bench: Bench) -> None:
    bench.refill()
    one = bench.ready.take()
    assert one is not None
    assert one.num_uses == 0
    assert bench.zygote.told == [CONTEXT, LET_GO]
    assert bench.ready.take() is None
    bench.refill()
    assert bench.ready.take() is not one


def test_each_has_a_uid_that_no_living_runner_has(bench: Bench) -> None:
    bench.spares.take()
    bench.refill(num_judging=2)
    assert bench.zygote.uids == [10, 11, 12]


@pytest.mark.parametrize(("num_judging", "num"), [(0, 0), (1, 1), (2, 2), (NUM + 3, NUM)])
def test_there_are_as_many_as_judge_at_once(bench: Bench, num_judging: int, num: int) -> None:
    bench.refill(num_judging=num_judging)
    assert (bench.num_waiting, len(bench.zygote.uids)) == (num, num)


def test_none_is_made_while_somebody_times(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "LEASE_TIMEOUT_S", 0.0)
    with bench.lease.exclusive(timeout_s=0.0):
        bench.refill()
    assert not bench.zygote.uids
    bench.refill()
    assert bench.num_waiting == 1


def test_a_writer_waits_for_one_at_most(bench: Bench) -> None:
    free: list[bool] = []
    bench.zygote.while_made = lambda: free.append(bench.is_free())
    with bench.ready.judging(), bench.ready.judging():
        bench.ready.step()
        assert bench.num_waiting == 1
        assert free == [False]
        assert bench.is_free()


def test_one_that_was_killed_is_not_given(bench: Bench) -> None:
    bench.refill(num_judging=2)
    first, second = bench.ready._waiting
    bench.zygote.kill(first.child)
    assert bench.ready.take() is second
    assert bench.zygote.ended == [first.child.pid]
    bench.refill()
    for one in bench.ready._waiting:
        bench.zygote.kill(one.child)
    assert bench.ready.take() is None


def test_children_of_a_zygote_that_is_gone_are_not_given(bench: Bench) -> None:
    bench.refill()
    bench.zygote.generation += 1
    assert bench.ready.take() is None
    assert bench.zygote.told == [CONTEXT]
    bench.refill()
    assert bench.ready.take() is not None


def test_they_end_once_nobody_judges(bench: Bench) -> None:
    bench.refill(num_judging=2)
    bench.now += MAX_IDLE_S - 1
    bench.ready.step()
    assert bench.num_waiting == 2
    bench.now += 1
    for _ in range(2):
        assert bench.ready.step()
    assert bench.zygote.ended == [1, 2]
    assert len(bench.zygote.uids) == 2
    assert False in bench.told_idle, "others end theirs while nobody times"
    bench.refill()
    assert bench.num_waiting == 1, "what many wanted before counts no longer"


def test_a_judgement_that_takes_long_is_not_idle(bench: Bench) -> None:
    with bench.ready.judging():
        bench.ready.step()
        bench.now += 10 * MAX_IDLE_S
        bench.ready.step()
    assert bench.num_waiting == 1
    assert not bench.told_idle


@pytest.mark.parametrize(
    "error", [ZygoteGone("gone"), WeakSandbox("weak"), RuntimeError("x"), None]
)
def test_what_fails_is_told_once_and_tried_at_the_next_judgement(
    bench: Bench, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench.zygote.error, bench.zygote.answer = error, Kind.FAILED
    for num in (1, 2):
        bench.refill()
        assert len(bench.zygote.uids) == num
    assert len(bench.zygote.ended) == (2 if error is None else 0)
    assert len(caplog.records) == 1
    assert bench.is_free()
    bench.zygote.error, bench.zygote.answer = None, Kind.DONE
    bench.refill()
    assert bench.ready.take() is not None
    bench.zygote.error = RuntimeError("anew")
    bench.refill()
    assert len(caplog.records) == 2


def test_one_that_dies_over_its_context_is_ended(bench: Bench) -> None:
    def die() -> None:
        bench.zygote._theirs[-1].shutdown(socket.SHUT_RDWR)

    bench.zygote.while_made = die
    bench.refill()
    assert (bench.num_waiting, bench.zygote.ended) == (0, [1])


def test_a_card_without_room_is_left_to_who_judges(bench: Bench) -> None:
    bench.refill(num_judging=2)
    bench.ready.clear()
    assert bench.zygote.ended == [1, 2]
    bench.now += REST_S - 1
    bench.refill()
    assert len(bench.zygote.uids) == 2
    bench.now += 1
    bench.refill()
    assert bench.num_waiting == 1


def test_who_rests_ends_them_beside_a_judgement(bench: Bench) -> None:
    bench.refill(num_judging=2)
    with bench.ready.judging():
        bench.ready.rest()
        bench.ready.step()
    assert (bench.num_waiting, bench.zygote.ended) == (0, [1, 2])


@pytest.mark.parametrize("stop", ["rest", "close"])
def test_one_that_is_wanted_no_longer_when_it_is_made_ends(bench: Bench, stop: str) -> None:
    bench.zygote.while_made = getattr(bench.ready, stop)
    bench.refill()
    assert (bench.num_waiting, bench.zygote.ended) == (0, [1])


def test_one_that_is_wanted_no_longer_when_the_card_is_free_is_not_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = bench.lease.shared

    def slow(*, timeout_s: float) -> Any:
        bench.ready.rest()
        return shared(timeout_s=timeout_s)

    monkeypatch.setattr(bench.lease, "shared", slow)
    bench.refill()
    assert not bench.zygote.uids


def test_the_judges_end_hangs_up_on_all_that_wait(bench: Bench) -> None:
    bench.refill(num_judging=NUM)
    waiting = tuple(bench.ready._waiting)
    bench.ready.close()
    assert [spare.has_ended for spare in waiting] == [True] * NUM
    assert bench.num_waiting == 0


def test_the_thread_makes_them_and_ends_with_the_judge(bench: Bench) -> None:
    made = threading.Event()
    bench.zygote.while_made = made.set
    bench.ready.start()
    with bench.ready.judging():
        assert made.wait(TIMEOUT_S)
    bench.ready.close()
    (thread,) = (one for one in threading.enumerate() if one.name == "ready")
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_the_thread_survives_what_fails_and_does_not_spin(bench: Bench) -> None:
    bench.zygote.error = RuntimeError("x")
    bench.ready.start()
    for num in (1, 2):
        bench.zygote.was_asked.clear()
        with bench.ready.judging():
            assert bench.zygote.was_asked.wait(TIMEOUT_S)
        while not bench.ready._has_failed:
            time.sleep(0.001)
        assert len(bench.zygote.uids) == num


@pytest.mark.parametrize("num", [0, NUM])
@pytest.mark.parametrize("is_short", [False, True])
def test_the_thread_has_all_end_that_nobody_wants(
    bench: Bench, num: int, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the judgement that was the last has taken all that waited, or none is made."""
    monkeypatch.setattr(ready, "MAX_IDLE_S", 0.01)
    condition: Any = bench.ready._changed
    ended = threading.Event()
    bench.ready._num, bench.ready._on_idle = num, ended.set
    bench.ready.start()
    with bench.ready.judging():
        while not condition._waiters or bench.num_waiting < min(num, 1):
            time.sleep(0.001)
        if is_short:
            bench.ready.rest()
            assert ended.wait(TIMEOUT_S)
            ended.clear()
    while not condition._waiters and not ended.is_set():
        time.sleep(0.001)
    bench.now += MAX_IDLE_S
    assert ended.wait(TIMEOUT_S)
    assert bench.num_waiting == 0


def test_an_idle_thread_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float | None] = []
    waits = threading.Event()
    wait = bench.ready._changed.wait

    def watched(timeout: float | None = None) -> bool:
        timeouts.append(timeout)
        waits.set()
        return wait(timeout)

    monkeypatch.setattr(bench.ready._changed, "wait", watched)
    bench.now += MAX_IDLE_S
    bench.ready.start()
    assert waits.wait(TIMEOUT_S)
    assert timeouts == [None]


def test_they_take_a_small_part_of_a_card() -> None:
    sizes = [one << 30 for one in (8, 16, 24, 80, 141, 192)]
    ready = [num_ready(GPU_CAPACITY, memory_bytes=one) for one in sizes]
    drawing = [num_oracles(memory_bytes=one) for one in sizes]
    assert (ready, drawing) == ([0, 0, 1, 5, 8, 8], [1, 1, 1, 2, 4, 4])
    for *nums, size in list(zip(ready, drawing, sizes, strict=True))[1:]:
        assert sum(nums) * CONTEXT_BYTES <= 0.04 * size
    assert num_ready(1, memory_bytes=141 << 30) == 0


def test_without_a_sandbox_none_is_made_ahead(bench: Bench) -> None:
    spawner: Any = bench.zygote
    for isolation in Isolation:
        bench.zygote.isolation = isolation
        made = make_ready(
            bench.spares,
            spawner=spawner,
            lease=bench.lease,
            capacity=8,
            memory_bytes=80 << 30,
            on_idle=bench.zygote.close,
        )
        assert made._num == (0 if isolation is Isolation.NONE else 4)
