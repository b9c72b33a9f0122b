"""State of a stage's trainer, as its requests show it, and the events that change it; requests of
users to the trainer; state of the engines.

    STARTING ── asked ──▶ WAITING ── given ──▶ TRAINING
        │                 ▲     │                 │
     reported         asked   unanswered     acknowledged
        ▼                 │     ▼                 │
     WORKING ◀────────────┴─────┴─────────────────┘       ended: GONE, started: STARTING

Publishing is no state: weights are published beside a step, and a publish may outlive its trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class TrainerState(StrEnum):
    """State of a stage's trainer."""

    GONE = "gone"
    """No trainer runs."""
    STARTING = "starting"
    """Being started; it has neither asked for a batch nor reported a step."""
    WAITING = "waiting"
    """Asks for a batch."""
    TRAINING = "training"
    """Has a batch that it has not acknowledged."""
    WORKING = "working"
    """Between two batches, for example saving a checkpoint; or training on rows of its own."""


class TrainerEvent(StrEnum):
    """Event in the life of a trainer."""

    STARTED = "started"
    ASKED = "asked"
    """It asked for a batch."""
    GIVEN = "given"
    """It got one."""
    UNANSWERED = "unanswered"
    """It got another answer."""
    ACKNOWLEDGED = "acknowledged"
    """It trained its batch."""
    REPORTED = "reported"
    """It trained a step on rows of its own."""
    ENDED = "ended"


TRANSITIONS: Mapping[TrainerEvent, Mapping[TrainerState, TrainerState]] = {
    TrainerEvent.STARTED: dict.fromkeys(TrainerState, TrainerState.STARTING),
    TrainerEvent.ASKED: dict.fromkeys(TrainerState, TrainerState.WAITING),
    TrainerEvent.GIVEN: {TrainerState.WAITING: TrainerState.TRAINING},
    TrainerEvent.UNANSWERED: {TrainerState.WAITING: TrainerState.WORKING},
    TrainerEvent.ACKNOWLEDGED: {TrainerState.TRAINING: TrainerState.WORKING},
    TrainerEvent.REPORTED: {TrainerState.STARTING: TrainerState.WORKING},
    TrainerEvent.ENDED: dict.fromkeys(TrainerState, TrainerState.GONE),
}
"""The next state by event and state. An event changes no state that it does not list: the last
request of a dead trainer may be handled while its successor starts."""


def next_state(state: TrainerState, event: TrainerEvent) -> TrainerState:
    """The state after an event."""
    return TRANSITIONS[event].get(state, state)


class WaitClock:
    """Total time spent waiting. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._since: float | None = None

    def set(self, is_waiting: bool, *, now: float) -> None:
        """Waiting begins, continues or ends."""
        self._total_s, self._since = self.seconds(now), now if is_waiting else None

    def seconds(self, now: float) -> float:
        """Seconds waited so far."""
        return self._total_s + (0.0 if self._since is None else now - self._since)


class Engines(StrEnum):
    """State of engines that sleep while the trainer trains."""

    AWAKE = "awake"
    CHANGING = "changing"
    ASLEEP = "asleep"


@dataclass(slots=True, kw_only=True)
class StepRequests:
    """Requests of users to the trainer, carried out once its current step ends."""

    last_step: int
    is_save_wanted: bool = False
    """True until a checkpoint is written."""
    is_evaluation_wanted: bool = False
    """True until an evaluation begins."""
    evaluated_step: int = 0
    """Step after which the trainer was asked to publish and to wait for that; 0 for none."""

    def after(self, step: int) -> dict[str, bool]:
        """The answer to a trainer that has ended a step."""
        is_evaluated = self.is_evaluation_wanted and step < self.last_step
        if is_evaluated:
            self.evaluated_step = step
        return {"save": self.is_save_wanted, "evaluate": is_evaluated}

    def begin_evaluation(self) -> None:
        """The requested evaluation begins."""
        self.is_evaluation_wanted, self.evaluated_step = False, 0
