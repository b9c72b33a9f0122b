"""Runners between two smoke checks: what they hold, whose uid they have, when they end."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from forge.evalpool.judge import app, frames, spares
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.spares import MAX_IDLE_S, MAX_REUSES, MAX_SPARES, Spare, Spares
from forge.evalpool.judge.spawner import SandboxedChild

if TYPE_CHECKING:
    from collections.abc import Iterator

UIDS = (10, 11, 12)


class Zygote:
    """Forks runners that let go when asked to, until it is replaced."""

    def __init__(self) -> None:
        self.generation = 0
        self.uids: list[int | None] = []
        self.ended: list[int] = []
        self.told: list[dict[str, Any]] = []
        self.threads: list[threading.Thread] = []
        self.answer = Kind.DONE

    def spawn(self, *, role: str, uid: int | None) -> SandboxedChild:
        ours, theirs = socket.socketpair()
        self.uids.append(uid)
        self.threads.append(threading.Thread(target=self._serve, args=(theirs,)))
        self.threads[-1].start()
        return SandboxedChild(sock=ours, pid=len(self.uids), generation=self.generation)

    def is_current(self, child: SandboxedChild) -> bool:
        return child.generation == self.generation

    def end(self, child: SandboxedChild) -> int:
        child.sock.close()
        self.ended.append(child.pid)
        return 0

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while True:
                    deadline = time.monotonic() + 60
                    self.told.append(
                        frames.receive(sock, deadline=deadline, expected=(Kind.CALL,)).body
                    )
                    frames.send(sock, self.answer, {})
            except frames.PeerGone:
                return


class Bench:
    """A zygote, its spares, and a clock that stands."""

    def __init__(self) -> None:
        self.zygote = Zygote()
        self.now = 0.0
        spawner: Any = self.zygote
        self.spares = Spares(spawner, uids=UIDS, clock=lambda: self.now)
        self.taken: list[Spare] = []

    def take(self) -> Spare:
        self.taken.append(self.spares.take())
        return self.taken[-1]

    def close(self) -> None:
        for spare in self.taken:
            spare.child.sock.close()
        for thread in self.zygote.threads:
            thread.join()


@pytest.fixture
def bench() -> Iterator[Bench]:
    opened = Bench()
    yield opened
    opened.close()


def test_one_that_is_kept_has_let_go_and_serves_the_next(bench: Bench) -> None:
    one = bench.take()
    assert bench.spares.keep(one)
    assert bench.zygote.told == [{"let_go": True}]
    assert bench.take() is one
    assert not bench.zygote.ended


@pytest.mark.parametrize("answer", [Kind.FAILED, Kind.HELLO])
def test_one_that_does_not_let_go_is_not_kept(answer: Kind, bench: Bench) -> None:
    bench.zygote.answer = answer
    assert not bench.spares.keep(bench.take())


def test_one_that_is_silent_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "LET_GO_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not bench.spares.keep(Spare(SandboxedChild(sock=ours, pid=1)))


def test_children_of_a_zygote_that_is_gone_are_not_given_again(bench: Bench) -> None:
    kept, used = bench.take(), bench.take()
    assert bench.spares.keep(kept)
    bench.zygote.generation += 1
    assert not bench.spares.keep(used)
    assert bench.take() not in (kept, used)
    assert kept.has_ended


def test_one_that_nobody_wants_ends(bench: Bench) -> None:
    old, new = bench.take(), bench.take()
    assert bench.spares.keep(old)
    bench.now = MAX_IDLE_S - 1
    assert bench.spares.keep(new)
    bench.now = MAX_IDLE_S
    bench.spares.sweep()
    assert (old.has_ended, new.has_ended) == (True, False)
    assert bench.take() is new


def test_the_judges_end_hangs_up_on_all_that_wait(bench: Bench) -> None:
    waiting, at_work = bench.take(), bench.take()
    assert bench.spares.keep(waiting)
    bench.spares.close()
    assert (waiting.has_ended, at_work.has_ended) == (True, False)


def test_they_are_so_many_and_serve_so_often(bench: Bench) -> None:
    many = [bench.take() for _ in range(MAX_SPARES + 1)]
    assert [bench.spares.keep(one) for one in many] == [True] * MAX_SPARES + [False]
    worn = bench.take()
    worn.num_uses = MAX_REUSES
    assert not bench.spares.keep(worn)


def test_a_uid_is_one_runners_until_that_has_ended(bench: Bench) -> None:
    first, second = bench.take(), bench.take()
    assert bench.spares.keep(first)
    assert bench.take() is first
    bench.take()
    assert bench.zygote.uids == [10, 11, 12]
    bench.zygote.end(second.child)
    assert bench.take().uid == 11


def test_no_two_kinds_of_children_share_a_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for pid in (2, 1_999, 4_194_303):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        runners = app._uids(64)
        kept = app._uids(app.NUM_SPARE_UIDS, first=app.FIRST_UID + app.NUM_UIDS)
        found = [*runners, *kept, app.oracle_uid()]
        assert len(set(found)) == len(found)
        assert max(uid for uid in found if uid is not None) < 65_534
