"""Fresh runners whose CUDA context is made ahead: the driver makes ten a second, one at a time.

Called by `gpu_trial.py`; one thread refills. Promises: each is given to one judgement and had no
candidate before; one that has ended is not given; none is made while somebody times on the card,
and a writer waits for one at most; all end once nobody has judged for `MAX_IDLE_S`. What cannot be
made, a judgement makes itself, and is told what is wrong: here it is logged, and tried again at the
next judgement.

    judging ─▶ wanted ─▶ shared lease: sandbox, context ─▶ waits ─▶ take ─▶ one judgement
                                                             └─▶ idle, clear ─▶ ended
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from forge.evalpool.capacity import num_ready
from forge.evalpool.judge import frames
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.sandbox import Isolation
from forge.evalpool.judge.spawner import ZygoteGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forge.evalpool.judge.spares import Spare, Spares
    from forge.evalpool.judge.spawner import Spawner
    from forge.process.gpu_lease import GpuLease

logger = logging.getLogger(__name__)

MAX_IDLE_S = 30.0
"""A context takes half a GB of the card."""
REST_S = 30.0
"""None is made for so long after the card had no room for somebody."""
LEASE_TIMEOUT_S = 120.0
"""Of which a window of timings takes half a minute."""
CONTEXT_TIMEOUT_S = 20.0
"""As long as writers wait for a driver that hangs. Beside 16 others it takes 2 s."""


class NotReady(Exception):
    """A runner could not make its context: what it says, before it has any candidate's code."""


class ReadyRunners:
    """At most `num` that wait. Safe to call from several threads."""

    def __init__(
        self,
        spares: Spares,
        *,
        spawner: Spawner,
        lease: GpuLease,
        num: int,
        on_idle: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_idle` is called under the card's lease when those that wait have ended, unwanted, and
        where none waited: once behind each judgement."""
        self._spares = spares
        self._spawner = spawner
        self._lease = lease
        self._num = num
        self._on_idle = on_idle
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Spare] = deque()
        self._num_judging = 0
        self._most = 0
        """Judgements at once since nobody judged for long: for one alone, one is enough."""
        self._idle_since = clock()
        self._rests_until = clock()
        self._others_wait = False
        """Whether somebody has judged since `on_idle` was called."""
        self._has_failed = False
        """Since the last judgement began."""
        self._is_told = False
        """Of failures since the last success, one is logged."""
        self._is_closed = False

    def start(self) -> None:
        """From now on they are made and ended; `close` ends it."""
        threading.Thread(target=self._serve, name="ready", daemon=True).start()

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Within, runners are wanted."""
        with self._changed:
            if self._are_unwanted():
                self._most = 0
            self._num_judging += 1
            self._most = max(self._most, self._num_judging)
            self._others_wait = True
            self._has_failed = False
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._num_judging -= 1
                self._others_wait = True
                self._idle_since = self._clock()
                self._changed.notify_all()

    def take(self) -> Spare | None:
        """One for the caller to end, or None where none waits. Under the card's lease."""
        while (spare := self._pop()) is not None:
            # Asked, not looked at: one that was killed closes its socket after its context.
            if self._spawner.is_current(spare.child) and spare.let_go():
                return spare
            logger.warning("a runner ended while it waited for a candidate")
            self._end(spare)
        return None

    def rest(self) -> None:
        """Somebody found no memory on the card: all that wait are to end, none is made for a
        while."""
        with self._changed:
            self._rests_until = self._clock() + REST_S
            self._changed.notify_all()

    def clear(self) -> None:
        """The same, and they have ended. Under the card's lease."""
        self.rest()
        while (spare := self._pop()) is not None:
            self._end(spare)

    def close(self) -> None:
        """Makes no more. Those that wait end with their zygote."""
        with self._changed:
            self._is_closed = True
            for spare in self._waiting:
                spare.hang_up()
            self._waiting.clear()
            self._changed.notify_all()

    def step(self) -> bool:
        """Makes one, or ends those that nobody wants, where it is time to. Whether it could."""
        with self._changed:
            is_wanted, are_unwanted = self._is_wanted(), self._are_unwanted()
        try:
            if is_wanted:
                self._make()
            elif are_unwanted:
                self._end_unwanted()
        except Exception as error:  # what ends this thread nobody would see
            self._note_failure(error)
            return False
        return True

    def _serve(self) -> None:
        while not self._is_closed:
            could = self.step()
            with self._changed:
                if could:
                    while not self._has_work():  # a judgement's end begins the time anew
                        self._changed.wait(self._idle_in_s() if self._has_any() else None)
                else:
                    self._changed.wait_for(self._has_new_work, timeout=REST_S)

    def _has_work(self) -> bool:
        return self._has_new_work() or (self._has_any() and self._are_unwanted())

    def _has_any(self) -> bool:
        return bool(self._waiting) or self._others_wait

    def _has_new_work(self) -> bool:
        return self._is_closed or self._is_wanted()

    def _is_wanted(self) -> bool:
        if self._is_closed or self._has_failed or self._are_unwanted():
            return False
        return len(self._waiting) < min(self._num, self._most)

    def _are_unwanted(self) -> bool:
        return self._clock() < self._rests_until or self._idle_in_s() == 0.0

    def _idle_in_s(self) -> float | None:
        """None while somebody judges."""
        if self._num_judging:
            return None
        return max(0.0, self._idle_since + MAX_IDLE_S - self._clock())

    def _make(self) -> None:
        with self._lease.shared(timeout_s=LEASE_TIMEOUT_S), ExitStack() as undo:
            with self._changed:
                if not self._is_wanted():  # the wait was long
                    return
            spare = self._spares.fresh()
            undo.callback(self._end, spare)
            _make_context(spare)
            with self._changed:
                if self._is_wanted():
                    self._waiting.append(spare)
                    undo.pop_all()
                self._is_told = False

    def _end_unwanted(self) -> None:
        """One at a time: a writer does not wait for all."""
        while self._waiting:
            with self._lease.shared(timeout_s=LEASE_TIMEOUT_S):
                with self._changed:
                    if not self._are_unwanted():
                        return
                if (spare := self._pop()) is not None:
                    self._end(spare)
        with self._lease.shared(timeout_s=LEASE_TIMEOUT_S):
            with self._changed:
                if not (self._others_wait and self._are_unwanted()):
                    return
                self._others_wait = False
            self._on_idle()

    def _pop(self) -> Spare | None:
        with self._changed:
            spare = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return spare

    def _end(self, spare: Spare) -> None:
        with suppress(ZygoteGone):
            self._spawner.end(spare.child)

    def _note_failure(self, error: Exception) -> None:
        with self._changed:
            self._has_failed = True
            is_told, self._is_told = self._is_told or self._is_closed, True
        if not is_told:
            logger.warning("no runner is made ahead: %s: %s", type(error).__name__, error)


def make_ready(
    spares: Spares,
    *,
    spawner: Spawner,
    lease: GpuLease,
    capacity: int,
    memory_bytes: int,
    on_idle: Callable[[], None],
) -> ReadyRunners:
    """As many as suit a judge of so many candidates at once, on a card of this size."""
    num = num_ready(capacity, memory_bytes=memory_bytes)
    if spawner.isolation is Isolation.NONE:
        num = 0  # a candidate could enter the process that waits for the next one
    return ReadyRunners(spares, spawner=spawner, lease=lease, num=num, on_idle=on_idle)


def _make_context(spare: Spare) -> None:
    """Raises NotReady."""
    sock, deadline = spare.child.sock, time.monotonic() + CONTEXT_TIMEOUT_S
    try:
        frames.send(sock, Kind.CALL, {"context": True}, timeout_s=CONTEXT_TIMEOUT_S)
        expected = (Kind.DONE, Kind.FAILED)
        answer = frames.receive(sock, deadline=deadline, expected=expected)
    except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
        raise NotReady(f"its runner: {error!r}") from error
    if answer.kind is Kind.FAILED:
        raise NotReady(f"{answer.body.get('type')}: {answer.body.get('message')}")
