"""Judges with scripted answers, kept at the seats of a pool, for tests."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import httpx

from forge.config.schema import JudgeTable
from forge.evalpool.keeper import Link, keep
from forge.evalpool.pool import Pool
from forge.evalpool.seating import Seat, Seating
from forge.records.problem import ReferenceModule
from forge.records.verdict import Status, Timing, Verdict

PROBLEM = ReferenceModule(problem_id="p", source="s")
CORRECT = Verdict(
    status=Status.CORRECT, reason="ok", detail="", device="H100", isolation="i", harness="h"
)
WRONG = replace(CORRECT, status=Status.WRONG, reason="mismatch")
CRASH = replace(CORRECT, status=Status.RUNTIME_ERROR, reason="crash")
FAULT = replace(CORRECT, status=Status.INFRA_ERROR, reason="zygote_gone")
KILLED = replace(CORRECT, status=Status.INFRA_ERROR, reason="runner_killed", device="cpu")
TIMES = Timing(
    speedup=2.0, speedup_low=1.9, candidate_us=1.0, baseline_us=2.0, candidate_spread_us=0.1,
    baseline_spread_us=0.1,
)  # fmt: skip


def seats_up(num: int, *, capacity: int = 1) -> Seating:
    seats = Seating(Seat(f"judge-{number}", capacity=capacity) for number in range(num))
    for seat in seats.seats:
        seats.judge_opened(seat, httpx.AsyncClient())
    return seats


class Script:
    """A judge with scripted answers that records its requests."""

    def __init__(self, *answers: Verdict) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.num_opened = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body["code"])
        self.options.append(body["options"])
        verdict = self.answers.pop(0) if self.answers else CORRECT
        return httpx.Response(200, json=verdict.to_json())

    async def answer_soon(self, request: httpx.Request) -> httpx.Response:
        await anyio.sleep(0.001)
        return self.answer(request)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        async def never() -> str:
            await anyio.sleep_forever()
            return ""

        self.num_opened += 1
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(self.answer_soon), base_url="http://judge"
        ) as client:
            health = {"device": "H100", "isolation": "i", "harness": "h"}
            yield Link(client=client, health=health, ended=never)


@asynccontextmanager
async def kept(*scripts: Script, finishes_started: bool = False) -> AsyncIterator[Pool]:
    seats = Seating(Seat(f"judge-{number}") for number in range(len(scripts)))
    async with anyio.create_task_group() as tg:
        for seat, script in zip(seats.seats, scripts, strict=True):
            await tg.start(keep, seats, seat, script.open)
        yield Pool(JudgeTable(), seats, finishes_started=finishes_started)
        tg.cancel_scope.cancel()
