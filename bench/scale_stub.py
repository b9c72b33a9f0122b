"""A server that answers as an engine and as a judge at once, so that only its client's costs count.

    python bench/scale_stub.py SOCKET FILE

Started by `scale_costs.py`. FILE has the token ids of an answer: {"before", "digits", "after",
"tail", "stop"}. Every answer has another number in its code, so that no cache knows it.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forge.process.server.serving import serve
from forge.records import Completion, Finish, Status, Timing, Verdict
from forge.serve.wire import COMPACT, pack

if TYPE_CHECKING:
    from starlette.requests import Request

NUM_LAUNCHES = 2


def make_answer(ids: dict[str, Any], number: int) -> Completion:
    """An answer with a number of its own."""
    digits = [ids["digits"][int(digit)] for digit in str(number)]
    tokens = (*ids["before"], *digits, *ids["after"], ids["stop"])
    logprobs = tuple(-0.01 * (index % 97) for index in range(len(tokens)))
    return Completion(
        token_ids=tokens, logprobs=logprobs, finish=Finish.STOP, min_version=0, max_version=0
    )


def make_verdict(draw: random.Random, *, correct_share: float = 0.4) -> Verdict:
    """A verdict as large as a judge's: with a program, and a report or times."""
    program = b"\x28\xb5\x2f\xfd" + draw.randbytes(1500)
    phases = {name: draw.random() for name in ("source", "capture", "compile", "correct", "time")}
    if draw.random() < correct_share:
        timing = Timing(
            speedup=1.3, speedup_low=1.2, candidate_us=80.0, baseline_us=104.0,
            candidate_spread_us=2.0, baseline_spread_us=2.0, achieved_gbps=900.0,
            achieved_tflops=12.0, roofline_share=0.4,
        )  # fmt: skip
        return Verdict(
            status=Status.CORRECT, reason="ok", detail="", num_launches=NUM_LAUNCHES,
            is_compiled=True, timing=timing, device="cuda", phase_s=phases, program=program,
        )  # fmt: skip
    found = draw.random()  # in every verdict another one, as in real ones
    detail = f"output 0 at (3, 17): {found:.3f} where 0.456 was expected\n" * 8
    return Verdict(
        status=Status.WRONG, reason="mismatch", detail=detail, num_launches=NUM_LAUNCHES,
        is_compiled=True, device="cuda", phase_s=phases, program=program,
    )  # fmt: skip


def app(ids: dict[str, Any]) -> Starlette:
    """Its endpoints."""
    numbers, draw = itertools.count(10_000), random.Random(0)

    async def completions(request: Request) -> Response:
        count = (await request.json()).get("n", 1)
        found = [make_answer(ids, next(numbers)) for _ in range(count)]
        return Response(pack(found), media_type=COMPACT)

    async def judge(request: Request) -> Response:
        await request.body()
        return JSONResponse(make_verdict(draw).to_json())

    async def health(_request: Request) -> Response:
        facts = {"ok": True, "features": [], "kv_use": 0.1, "running": 3, "waiting": 0}
        return JSONResponse({**facts, "preempted": 0, "version": 0, "engine": "stub"})

    posts = [("/v1/completions", completions), ("/judge", judge)]
    return Starlette(
        routes=[*(Route(path, f, methods=["POST"]) for path, f in posts), Route("/health", health)]
    )


if __name__ == "__main__":
    serve(app(json.loads(Path(sys.argv[2]).read_text())), Path(sys.argv[1]))
