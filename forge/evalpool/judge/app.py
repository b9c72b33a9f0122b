"""The judge: one trusted child process, on a Unix socket. `start.py` starts it.

It serves:

    POST /judge {problem: {problem_id, source, entry_point, precision}, code,
                 options: {timing, profile, program, outputs}} → Verdict
    POST /examine {problem, lists_sets} → Examination: whether it can be judged and trained on; with
                 `lists_sets` only the names of the sets of its get_input_sets()
    POST /harvest {work, limit_s} → {done} or {failed, detail}: the sizes that a problem bears, or
                 its answer by the compiler; judges of a harvest alone
    GET /health → {ok, capacity, device, isolation, harness}

Holds seeds, tolerances, expected outputs and the verdict; imports neither torch nor any problem's
or candidate's code. Owns a zygote, which forks its children; on a GPU also a second one, whose
children have the card's files. A zygote that dies is replaced here, from the main thread.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.errors import ChildDied, ForgeError, MachineError
from forge.evalpool.judge.children.spawner import (
    LimitMet,
    SandboxRefused,
    Spawner,
    UnusableInstallation,
    ZygoteGone,
)
from forge.evalpool.judge.compiler.cache import Cache, default_folder
from forge.evalpool.judge.harvest.asking import ask_harvester
from forge.evalpool.judge.sandbox.enter import advice, read_sysctls
from forge.evalpool.judge.trial.cpu_trial import open_cpu_trials
from forge.evalpool.judge.trial.examiner import Examiners
from forge.evalpool.judge.trial.trial import Stamp
from forge.evalpool.site_packages import versions_of
from forge.evalpool.wire import (
    ExamineBody,
    HarvestBody,
    JudgeBody,
    read_request,
)
from forge.process.machine import limit_behind
from forge.process.server.bodies import parse_body
from forge.process.server.door import Door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.trial.trials import Trials
    from forge.records.examination import Examination
    from forge.records.problem import ReferenceModule
    from forge.records.verdict import JudgeOptions, Verdict

logger = logging.getLogger(__name__)

SOURCES = (".py", ".txt")
"""Files that verdicts depend on: code, and the table of operations."""


class Judge:
    """State that the routes share."""

    def __init__(
        self,
        *,
        table: JudgeTable,
        spawner: Spawner,
        card_spawner: Spawner | None = None,
        concurrency: int = 1,
        gpu_uuid: str | None = None,
    ) -> None:
        """
        Args:
            spawner: its zygote is started.
            card_spawner: the same for children with the card's files; no candidate runs in them.
            gpu_uuid: the card that the judge owns; the environment hides all others from it.
        """
        self.table = table
        self.cache = Cache(default_folder())
        """Compiled kernels."""
        self.spawner = spawner
        self.card_spawner = card_spawner
        self._gpu_uuid = gpu_uuid
        self.concurrency = concurrency
        self._slots = anyio.Semaphore(concurrency)
        self._restarting = anyio.Lock()
        self._trials: Trials | None = None

    async def start(self) -> None:
        """Waits for the zygotes and wires references and trials. A zygote that is killed while it
        starts is started once more. Raises ZygoteGone."""
        for spawner in self._spawners():
            try:
                await anyio.to_thread.run_sync(spawner.wait_ready)
            except ZygoteGone as error:
                if type(error) is not ZygoteGone:
                    raise
                logger.warning("%s; a new one is started", error)
                spawner.start()
                await anyio.to_thread.run_sync(spawner.wait_ready)
        self._trials = self._open_trials()

    def _spawners(self) -> list[Spawner]:
        return [self.spawner, *([self.card_spawner] if self.card_spawner is not None else [])]

    def _open_trials(self) -> Trials:
        if self._gpu_uuid is None:
            return open_cpu_trials(
                self.table, spawner=self.spawner, stamp=self._stamp(), cache=self.cache
            )
        from forge.evalpool.judge.trial.gpu.trial import open_gpu_trials

        assert self.card_spawner is not None
        return open_gpu_trials(
            self.table,
            spawner=self.spawner,
            card_spawner=self.card_spawner,
            stamp=self._stamp(),
            uuid=self._gpu_uuid,
            cache=self.cache,
        )

    def close(self) -> None:
        """Ends the zygotes with all their children."""
        if self._trials is not None:
            self._trials.close()
        for spawner in self._spawners():
            spawner.close()

    def health(self) -> dict[str, Any]:
        """Its capacity, and the facts that verdicts on correctness depend on."""
        assert self._trials is not None
        stamp = self._trials.stamp
        return {
            "ok": True,
            "capacity": self.concurrency,
            "device": stamp.device,
            "isolation": stamp.isolation,
            "harness": stamp.harness,
        }

    async def judge(self, problem: ReferenceModule, code: str, options: JudgeOptions) -> Verdict:
        """One verdict. Waits for a free slot."""
        async with self._slot():
            assert self._trials is not None
            work = partial(self._trials.judge, problem, code, options=options)
            return await anyio.to_thread.run_sync(work)

    async def examine(self, problem: ReferenceModule, *, lists_sets: bool = False) -> Examination:
        """The faults of a problem, or the names of its input sets. Waits for a free slot; raises
        ZygoteGone."""
        async with self._slot():
            spawner = self.card_spawner or self.spawner
            examiners = Examiners(spawner, table=self.table, gpu_uuid=self._gpu_uuid)
            work = partial(examiners.examine, problem, lists_sets=lists_sets)
            return await anyio.to_thread.run_sync(work)

    async def harvest(self, work: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
        """The work of a harvest on one problem. Waits for a free slot; raises ZygoteGone."""
        async with self._slot():
            ask = partial(ask_harvester, self.spawner, work, limit_s=limit_s)
            return await anyio.to_thread.run_sync(ask)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Waits for a free slot, and sees to the zygotes."""
        async with self._slots:
            await self._ensure_zygote()
            yield

    async def _ensure_zygote(self) -> None:
        async with self._restarting:
            for spawner in self._spawners():
                if spawner.is_running:
                    continue
                logger.warning("a zygote is gone; a new one is started")
                spawner.start()
                try:
                    await anyio.to_thread.run_sync(spawner.wait_ready)
                except ZygoteGone as error:
                    logger.error("%s", error)

    def _stamp(self) -> Stamp:
        return Stamp(
            isolation=str(self.spawner.isolation),
            caps=str(self.spawner.caps),
            harness=harness(self.spawner.versions | versions_of(self.table.site_packages)),
        )


def harness(versions: Mapping[str, str]) -> str:
    """Short hash of the source below this folder and the versions of torch, triton and what
    references may import."""
    digest = hashlib.sha256(repr(sorted(versions.items())).encode())
    files = (path for path in Path(__file__).parent.rglob("*") if path.suffix in SOURCES)
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def make_app(judge: Judge) -> Starlette:
    """The routes. Ready (answers /health) once its zygote is."""

    async def health(request: Request) -> JSONResponse:
        return JSONResponse(judge.health())

    async def judge_one(request: Request) -> JSONResponse:
        problem, code, options = parse_body(JudgeBody, await read_request(request)).request()
        return JSONResponse((await judge.judge(problem, code, options)).to_json())

    async def examine_one(request: Request) -> JSONResponse:
        asked = parse_body(ExamineBody, await read_request(request))
        found = await judge.examine(asked.problem.module(), lists_sets=asked.lists_sets)
        return JSONResponse(found.to_json())

    async def harvest_one(request: Request) -> JSONResponse:
        asked = parse_body(HarvestBody, await read_request(request))
        return JSONResponse(await judge.harvest(asked.work.model_dump(), limit_s=asked.limit_s))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            await judge.start()
        except ZygoteGone as error:
            _refuse(error)
        gc.collect()
        gc.freeze()  # the collector looks at what verdicts make, not at every module each time
        try:
            yield
        finally:
            judge.close()

    routes = [Route("/health", health), Route("/judge", judge_one, methods=["POST"])]
    routes.append(Route("/examine", examine_one, methods=["POST"]))
    routes.append(Route("/harvest", harvest_one, methods=["POST"]))
    return Starlette(routes=routes, middleware=[Middleware(Door)], lifespan=lifespan)


def _refuse(error: ZygoteGone) -> None:
    """Logs the error where the supervisor reads it, and ends with its exit code."""
    kind: type[ForgeError] = MachineError
    if isinstance(error, UnusableInstallation):
        message = (
            f"no kernel can be judged with this installation: {error}; "
            '"make setup" installs what works'
        )
    elif isinstance(error, SandboxRefused):
        fix = advice(uid=os.geteuid(), sysctls=read_sysctls())
        message = (
            f"no sandbox for candidates on this machine: {error}; {fix}; "
            'or write [judge] isolation = "none"'
        )
    elif isinstance(error, LimitMet):
        message = f"no candidate can be started: {error}"
    else:
        kind, message = ChildDied, f"no candidate can be judged: {error}"
    logger.error("%s: %s%s", kind.__name__, message, limit_behind(message))
    sys.stderr.flush()
    os._exit(kind.exit_code)
