"""The HTTP routes on a Unix socket, around a pool that answers by the text of the code, for tests.

"wrong" in the code: wrong; "fault": infra_error; "fault once": infra_error at first;
"timed": correct with times; anything else: correct
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal

from forge.adapters.answering import answering_on
from forge.adapters.http.routes import JudgeApi
from forge.adapters.subjects import KnownProblems
from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool
from forge.evalpool.seating import JudgeKind, Seat, Seating, State
from forge.evalpool.served import PoolApp
from forge.process.server.serving import serve_task
from forge.records import Reason, Status, Timing, Verdict
from forge.records.problem import ReferenceModule

TIMING = Timing(
    speedup=2.0, speedup_low=1.9, candidate_us=10.0, baseline_us=20.0, candidate_spread_us=0.1,
    baseline_spread_us=0.2,
)  # fmt: skip


def code(text: str) -> str:
    """An answer that the judge's source check takes."""
    return f"class ModelNew: ...\n# {text}\n"


class TextPool(Pool):
    """A pool whose verdict depends on the code alone."""

    def __init__(self, *, delay_s: float = 0.0) -> None:
        seat = Seat("judge-0", capacity=4, state=State.UP)
        seat.kinds = (JudgeKind(device="cpu", isolation="namespaces", harness="h"),)
        super().__init__(JudgeTable(), Seating([seat]))
        self.delay_s = delay_s
        self.asked: list[tuple[ReferenceModule, str, bool]] = []

    async def judge(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        timing: bool = True,
        profile: bool = False,
        program: bool = False,
        outputs: bool = False,
    ) -> Verdict:
        is_first = all(code != one for _, one, _ in self.asked)
        self.asked.append((problem, code, timing))
        await anyio.sleep(self.delay_s)
        if "fault" in code and (is_first or "once" not in code):
            detail = "judge-0 did\nnot answer"
            return Verdict(status=Status.INFRA_ERROR, reason=Reason.JUDGE_LOST, detail=detail)
        if "wrong" in code:
            return Verdict(status=Status.WRONG, reason="mismatch", detail="d", is_compiled=True)
        timed = TIMING if "timed" in code else None
        return Verdict(
            status=Status.CORRECT, reason="ok", detail="", is_compiled=True, timing=timed
        )


@asynccontextmanager
async def serve(
    pool: TextPool, path: Path, *, known: KnownProblems | None = None, **door: Any
) -> AsyncIterator[None]:
    """Serves `/v1/` in this event loop."""
    app = PoolApp(pool, **door)
    public = JudgeApi(answering_on(pool, JudgeTable()), app, known=known, is_timed=False)
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_task, app.routes(public.routes()), path)
        yield
        tasks.cancel_scope.cancel()


@contextmanager
def serving(pool: TextPool, path: Path, **options: Any) -> Iterator[str]:
    """Serves `/v1/` in a thread; yields the URL."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(pool, path, **options)),
    ):
        yield f"unix:{path}"
