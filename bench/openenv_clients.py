"""Clients of an OpenEnv environment at the same time, some of which hang up in a step.

    forge judge PROBLEMS --serve --openenv --listen 127.0.0.1:8200 --workers 2 &
    python -m bench.openenv_clients ws://127.0.0.1:8200/ws --problem L1_1_AddOne --code kernel.py

`kernel.py` is a correct kernel of the problem with `+ 1` in it, which is changed to make wrong
ones. Needs the package websockets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from websockets.asyncio.client import connect

EXPECTED = [0.3, 0.3, 0.8]
"""Rewards of two wrong answers and a correct one, without times."""


@dataclass(slots=True, kw_only=True)
class Load:
    """Clients of one address, and what they saw."""

    url: str
    problem: str
    code: str
    step_s: list[float] = field(default_factory=list[float])
    num_wrong: int = 0
    """Episodes with other rewards than EXPECTED."""

    async def play(self, number: int) -> None:
        """Play an episode of three turns with sources that no other client sends."""
        answers = [self.code.replace("+ 1", f"+ {number}.{digit}") for digit in (5, 75)]
        rewards: list[float] = []
        async with connect(self.url, ping_interval=None) as socket:
            await say(socket, "reset", problem_id=self.problem)
            for answer in (*answers, f"{self.code}\n# {number}\n"):
                began = time.perf_counter()
                found = await say(socket, "step", code=answer)
                self.step_s.append(time.perf_counter() - began)
                rewards.append(found["data"].get("reward"))
        self.num_wrong += rewards != EXPECTED

    async def hang_up(self, number: int) -> None:
        """Leave while an answer is being judged."""
        socket = await connect(self.url, ping_interval=None)
        await say(socket, "reset", problem_id=self.problem)
        action = {"code": f"{self.code}\n# left {number}\n"}
        await socket.send(json.dumps({"type": "step", "data": action}))
        await anyio.sleep(0.01)
        socket.transport.abort()

    async def run(self, name: str, *, num: int, first: int, num_leaving: int = 0) -> None:
        """Play episodes at the same time, beside clients that hang up; print their rate."""
        began, self.step_s = time.perf_counter(), []
        async with anyio.create_task_group() as tasks:
            for number in range(num_leaving):
                tasks.start_soon(self.hang_up, first + number)
            for number in range(num):
                tasks.start_soon(self.play, first + number)
        took_s = time.perf_counter() - began
        rate, median_s = len(self.step_s) / took_s, statistics.median(self.step_s)
        print(
            f"{name}: {num} episodes of 3 turns in {took_s:.1f} s, {rate:.1f} steps/s,"
            f" median step {median_s:.2f} s, {self.num_wrong} with wrong rewards"
        )


async def say(socket: Any, kind: str, **data: Any) -> dict[str, Any]:
    """The answer to a message."""
    await socket.send(json.dumps({"type": kind, "data": data}))
    return json.loads(await socket.recv())


async def main() -> None:
    """Print the rate of steps: alone, beside clients that hang up, and after 300 of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--problem", required=True)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=32)
    given = parser.parse_args()
    load = Load(url=given.url, problem=given.problem, code=given.code.read_text())
    await load.run("alone", num=given.clients, first=2)
    await load.run("as many hang up", num=given.clients, first=1000, num_leaving=given.clients)
    for first in range(2000, 2300, 30):
        async with anyio.create_task_group() as tasks:
            for number in range(first, first + 30):
                tasks.start_soon(load.hang_up, number)
    await load.run("after 300 have hung up", num=1, first=3000)


if __name__ == "__main__":
    anyio.run(main)
