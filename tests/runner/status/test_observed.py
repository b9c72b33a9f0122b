"""Phases of components, read from their owners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from forge.config.load import load_experiment
from forge.evalpool.pool import Pool
from forge.evalpool.seat import Seat
from forge.evalpool.seating import Seating
from forge.records.verdict import Status, Verdict
from forge.runner.status.observed import observe_judges

pytestmark = pytest.mark.anyio

EXPERIMENT = load_experiment(Path(__file__).parents[3] / "experiments" / "quickstart.toml")
CRASH = Verdict(
    status=Status.RUNTIME_ERROR, reason="crash", detail="", device="H100", isolation="i",
    harness="h",
)  # fmt: skip


async def test_a_judge_with_only_a_canary_is_not_idle() -> None:
    seats = Seating([Seat("judge-0", capacity=4)])
    pool = Pool(EXPERIMENT.judge, seats)

    def phase() -> str:
        (seen,) = observe_judges(pool, EXPERIMENT, seen={})
        return seen.phase

    seats.judge_opened(seats.seats[0], httpx.AsyncClient(), is_trusted=True)
    assert phase() == "idle"
    seat = await seats.take()
    seats.record_verdict(seat, CRASH)
    assert phase() == "judging 1 of 4"
    seats.give_back(seat)
    assert phase() == "judging a canary"
    seats.canary_started(seat)
    seats.canary_judged(seat, fault=None)
    seats.record_verdict(seat, replace(CRASH, device="cpu"))
    assert phase() == "idle"
