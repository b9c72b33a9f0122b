# pyright: strict
"""One place for a judge: who answers there now, and how far it is trusted.

Seats are chosen by `seating.py`, filled by `keeper.py` and shown by `forge status`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import anyio

from forge.evalpool.pace import work
from forge.process.busy import BusyClock

if TYPE_CHECKING:
    import httpx


MAX_PROBLEMS = 16
"""Problems that are remembered, no more than a judge keeps (`MAX_PROBLEMS` of its references)."""


class State(StrEnum):
    """State of a seat."""

    UP = "up"
    """Takes requests."""
    SUSPECT = "suspect"
    """Takes no requests until it judges a canary correctly."""
    DOWN = "down"
    """Has no judge: starting or restarting."""
    QUARANTINED = "quarantined"
    """Failed twice: restarted after a back-off, then a canary before any request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeKind:
    """Judges of the same kind give the same verdict on correctness."""

    device: str
    isolation: str
    harness: str


@dataclass(slots=True, eq=False)
class Doubt:
    """A suspicion that a card is damaged, until a canary decides."""

    ended: anyio.Event = field(default_factory=anyio.Event)
    is_settled: bool = False
    """True if a canary was judged correctly: the card works."""


@dataclass(slots=True, eq=False)
class Seat:
    """One judge's place in a pool."""

    name: str
    host: str = ""
    """Machine of the judge, if it is a node's."""
    capacity: int = 1
    """Maximum number of concurrent requests."""
    is_remote: bool = False
    """True for a pool behind a URL, which judges its own canaries."""
    client: httpx.AsyncClient | None = None
    """Open while the judge lives. Shared by all requests: opening one reads certificates (20 ms).
    """
    kinds: tuple[JudgeKind, ...] = ()
    """Kind of the judge; kinds of all judges behind a URL."""
    state: State = State.DOWN
    num_running: int = 0
    num_taken: int = 0
    num_faults: int = 0
    """Infra faults in a row."""
    trouble: float = 0.0
    """Recent faults and restarts. Each verdict makes them count less."""
    slowness: float = 1.0
    """Time of its verdicts relative to the others' while it counts as slow; else 1."""
    taken_at: int = 0
    """Number of the request of all judges that it took last."""
    num_failed_canaries: int = 0
    """Failed canaries in a row."""
    why: str = ""
    """The latest fault."""
    doubt: Doubt | None = None
    """Raised by a fault on the card; its canary has not started. After the judge is gone the doubt
    has ended and stays for verdicts that still arrive."""
    examined: Doubt | None = None
    """The doubt whose canary is being judged."""
    examined_state: State = State.DOWN
    """State at the start of the last canary."""
    is_lost: bool = False
    """True if it broke a connection or did not answer: its keeper replaces it."""
    news: anyio.Event = field(default_factory=anyio.Event)
    """Set at each change, for the keeper."""
    problems: dict[str, None] = field(default_factory=dict[str, None])
    """Keys of the last problems that its judge was given, the latest last. Their references are
    drawn and captured there."""
    busy: BusyClock = field(default_factory=BusyClock)

    def note_problem(self, key: str) -> None:
        """Remembers a problem as the latest."""
        self.problems.pop(key, None)
        self.problems[key] = None
        if len(self.problems) > MAX_PROBLEMS:
            del self.problems[next(iter(self.problems))]

    @property
    def is_doubted(self) -> bool:
        """True while verdicts wait for a canary."""
        return self.doubt is not None or self.examined is not None

    @property
    def is_canary_due(self) -> bool:
        """True if the judge must judge a canary. In quarantine only its replacement does, which
        `keeper.py` decides."""
        return self.state is State.SUSPECT or (self.state is State.UP and self.doubt is not None)

    @property
    def is_timed(self) -> bool:
        """True if its judges may time candidates: on a card, or unknown behind a URL."""
        return self.is_remote or any(kind.device != "cpu" for kind in self.kinds)

    @property
    def next_work(self) -> float:
        """Expected time of one more request here, relative to one that is alone at an equal judge
        without faults."""
        return self.slowness * (1.0 + self.trouble) * work(self.num_running + 1, self.capacity)

    @property
    def has_room(self) -> bool:
        """True if it can take one more request."""
        return self.state is State.UP and self.num_running < self.capacity
