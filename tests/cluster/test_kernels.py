"""Compiled kernels travel from each judge to the others, through the supervisor."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import anyio
import httpx

from forge.runner.live.kernels import KernelTravel
from tests.evalpool.scripted_judges import seats_up


class KernelJudge:
    """A judge that has compiled some kernels."""

    def __init__(self, *made: str) -> None:
        self.made = list(made)
        self.received: list[str] = []
        self.is_broken = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert request.url.path == "/kernels"
        if self.is_broken:
            return httpx.Response(200, json={"nothing": "useful"})
        self.received += body["entries"]
        found = {"next": len(self.made), "entries": self.made[body["since"] :]}
        return httpx.Response(200, json=found)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.MockTransport(self.answer)
        return httpx.AsyncClient(transport=transport, base_url="http://judge")


def test_each_judge_gets_what_others_compiled_once_and_a_new_one_gets_all() -> None:
    async def play() -> None:
        judges = [KernelJudge("a"), KernelJudge("b"), KernelJudge()]
        seating = seats_up(3)
        for seat, judge in zip(seating.seats, judges, strict=True):
            seat.client = judge.client()
        travel = KernelTravel(cast("Any", SimpleNamespace(seating=seating)))
        await travel.exchange()
        await travel.exchange()
        judges[0].made.append("c")
        judges[1].is_broken = True
        await travel.exchange()
        judges[1].is_broken = False
        await travel.exchange()
        assert [sorted(judge.received) for judge in judges] == [["b"], ["a", "c"], ["a", "b", "c"]]
        restarted = KernelJudge()
        seating.seats[2].client = restarted.client()
        await travel.exchange()
        assert sorted(restarted.received) == ["a", "b", "c"]
        seating.seats[2].client = None
        await travel.exchange()

    anyio.run(play)
