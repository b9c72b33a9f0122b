"""The transition table of a stage's trainer."""

from __future__ import annotations

import pytest

from forge.runner.stages.desk import TrainerEvent, TrainerState, next_state

TABLE = """
              GONE      STARTING  WAITING   TRAINING  WORKING
STARTED       STARTING  STARTING  STARTING  STARTING  STARTING
ASKED         WAITING   WAITING   WAITING   WAITING   WAITING
GIVEN         GONE      STARTING  TRAINING  TRAINING  WORKING
UNANSWERED    GONE      STARTING  WORKING   TRAINING  WORKING
ACKNOWLEDGED  GONE      STARTING  WAITING   WORKING   WORKING
REPORTED      GONE      WORKING   WAITING   TRAINING  WORKING
ENDED         GONE      GONE      GONE      GONE      GONE
"""


def transitions() -> list[tuple[TrainerEvent, TrainerState, TrainerState]]:
    head, *rows = [line.split() for line in TABLE.strip().splitlines()]
    return [
        (TrainerEvent[event], TrainerState[state], TrainerState[after])
        for event, *cells in rows
        for state, after in zip(head, cells, strict=True)
    ]


@pytest.mark.parametrize(("event", "state", "after"), transitions())
def test_an_event_leads_from_each_state_to_the_one_in_the_table(
    event: TrainerEvent, state: TrainerState, after: TrainerState
) -> None:
    assert next_state(state, event) is after


def test_the_table_has_every_event_and_every_state() -> None:
    found = {(event, state) for event, state, _ in transitions()}
    assert found == {(event, state) for event in TrainerEvent for state in TrainerState}
