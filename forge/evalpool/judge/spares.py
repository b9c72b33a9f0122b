"""Runners that wait for another smoke check: their contexts are made, their predecessors gone.

Called by `gpu_trial.py`. A candidate may have changed the process for who comes next, so nothing
that counts is judged in one. Promises: one that waits holds nothing of a candidate's, as far as it
can be made to let go; its uid is nobody else's until it has ended; it ends with its zygote, or once
nobody wants it, at the next judgement.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge import frames
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.spawner import ZygoteGone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.spawner import SandboxedChild, Spawner

logger = logging.getLogger(__name__)

MAX_REUSES = 64
"""Smoke checks a process serves."""
MAX_SPARES = 16
MAX_IDLE_S = 30.0
"""A context takes half a GB of the card."""
LET_GO_S = 10.0
"""What is freed is unmapped and collected: milliseconds on an idle card."""


@dataclass(slots=True)
class Spare:
    """A runner, and how many candidates it has had."""

    child: SandboxedChild
    uid: int | None = None
    """Of those for spares."""
    num_uses: int = 0
    idle_since: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.child.sock.fileno() < 0

    def hang_up(self) -> None:
        """Where its zygote is about to end, and it with that."""
        self.child.sock.close()

    def let_go(self) -> bool:
        """Has it free what it holds of a candidate. Whether it says that it did."""
        sock = self.child.sock
        try:
            frames.send(sock, Kind.CALL, {"let_go": True}, timeout_s=LET_GO_S)
            frames.receive(sock, deadline=time.monotonic() + LET_GO_S, expected=(Kind.DONE,))
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
            logger.info("a runner does not let go of its candidate: %r", error)
            return False
        return True


class Spares:
    """Runners between two smoke checks. Safe to call from several threads."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        uids: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawner = spawner
        self._uids = list(uids)
        """The one that was given last is the last."""
        self._clock = clock
        self._lock = threading.Lock()
        self._made: list[Spare] = []
        """Those with a uid."""
        self._idle: list[Spare] = []

    def take(self) -> Spare:
        """One that waits, or a fresh one, for the caller to give to `keep` or to end. Raises
        ZygoteGone or WeakSandbox."""
        self.sweep()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.fresh()

    def fresh(self) -> Spare:
        """One that had no candidate, with a uid of its own. Raises as `take` does."""
        with self._lock:
            uid = self._next_uid()
        spare = Spare(self._spawner.spawn(role="runner", uid=uid), uid=uid)
        if uid is not None:
            with self._lock:
                self._made.append(spare)
        return spare

    def keep(self, spare: Spare) -> bool:
        """Whether it is kept; else the caller ends it."""
        self.sweep()
        if spare.num_uses >= MAX_REUSES or not spare.let_go():
            return False
        with self._lock:
            is_kept = len(self._idle) < MAX_SPARES and self._spawner.is_current(spare.child)
            if is_kept:
                spare.idle_since = self._clock()
                self._idle.append(spare)
            return is_kept

    def sweep(self) -> None:
        """Ends those that have waited too long, and lets go of those whose zygote has ended."""
        with self._lock:
            fit, unfit = [], []
            for spare in self._idle:
                is_fresh = self._clock() - spare.idle_since < MAX_IDLE_S
                is_fit = is_fresh and self._spawner.is_current(spare.child)
                (fit if is_fit else unfit).append(spare)
            self._idle = fit
        for spare in unfit:
            with suppress(ZygoteGone):
                self._spawner.end(spare.child)

    def close(self) -> None:
        """None is taken any more. Those that wait end with their zygote."""
        with self._lock:
            for spare in self._idle:
                spare.hang_up()
            self._idle.clear()

    def _next_uid(self) -> int | None:
        """One that is no living spare's. None where there are none to give."""
        if not self._uids:
            return None
        self._made = [spare for spare in self._made if not spare.has_ended]
        used = {spare.uid for spare in self._made}
        uid = next((uid for uid in self._uids if uid not in used), self._uids[0])
        self._uids.remove(uid)
        self._uids.append(uid)
        return uid
