"""The judge: one trusted child process, on a Unix socket. `start.py` starts it.

It serves the bodies of `evalpool/wire.py`:

    POST /judge → Verdict
    POST /examine → Examination: whether a problem can be judged and trained on; with `lists_sets`
                 only the names of the sets of its get_input_sets()
    POST /harvest → {done} or {failed, detail}: the sizes that a problem bears, or its answer by the
                 compiler; judges of a harvest alone
    GET /health → {ok, capacity, device, isolation, harness}

Holds seeds, tolerances, expected outputs and the verdict; imports no problem's or candidate's code.
Owns a zygote, which forks its children; on a GPU also a second one, whose children have the card's
files. A zygote that dies is replaced here, from the main thread.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.config.schema import JudgeTable
from forge.errors import ChildDied, ForgeError, MachineError
from forge.evalpool.judge.children.spawner import (
    LimitMet,
    SandboxRefused,
    Spawner,
    UnusableInstallation,
    ZygoteGone,
)
from forge.evalpool.judge.compiler.compile import Cache, default_folder
from forge.evalpool.judge.harvest.asking import ask_harvester
from forge.evalpool.judge.sandbox.enter import advice, read_sysctls
from forge.evalpool.judge.trial.cpu_trial import open_cpu_trials
from forge.evalpool.judge.trial.examiner import Examiners
from forge.evalpool.judge.trial.trial import Stamp
from forge.evalpool.site_packages import versions_of
from forge.evalpool.wire import ExamineBody, HarvestBody, JudgeBody, read_request
from forge.process.machine import limit_behind
from forge.process.server.bodies import parse_body
from forge.process.server.door import Door
from forge.records.examination import Examination
from forge.records.problem import ReferenceModule
from forge.records.verdict import JudgeOptions, Verdict

logger = logging.getLogger(__name__)

STAMPED = ("device", "isolation", "harness")
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
        """The zygotes of the spawners are started. The children of `card_spawner` have the card's
        files, and no candidate runs in them; the environment hides all other cards."""
        self.table = table
        self.spawner = spawner
        self.card_spawner = card_spawner
        self._spawners = [one for one in (spawner, card_spawner) if one is not None]
        self._gpu_uuid = gpu_uuid
        self._concurrency = concurrency
        self._slots = anyio.Semaphore(concurrency)
        self._restarting = anyio.Lock()
        self._trials: Any = None
        """A `Trials`, once it has started."""

    async def start(self) -> None:
        """Waits for the zygotes and wires references and trials. A zygote that is killed while it
        starts is started once more. Raises ZygoteGone."""
        for spawner in self._spawners:
            try:
                await anyio.to_thread.run_sync(spawner.wait_ready)
            except ZygoteGone as error:
                if type(error) is not ZygoteGone:
                    raise
                logger.warning("%s; a new one is started", error)
                spawner.start()
                await anyio.to_thread.run_sync(spawner.wait_ready)
        installed = self.spawner.versions | versions_of(self.table.site_packages)
        stamp = Stamp(
            isolation=str(self.spawner.isolation),
            caps=str(self.spawner.caps),
            harness=harness(installed),
        )
        given: Any = {"spawner": self.spawner, "stamp": stamp, "cache": Cache(default_folder())}
        if self._gpu_uuid is None:
            self._trials = open_cpu_trials(self.table, **given)
            return
        from forge.evalpool.judge.trial.gpu.trial import open_gpu_trials

        assert self.card_spawner is not None
        card: Any = {"card_spawner": self.card_spawner, "uuid": self._gpu_uuid}
        self._trials = open_gpu_trials(self.table, **given, **card)

    def close(self) -> None:
        """Ends the zygotes with all their children."""
        if self._trials is not None:
            self._trials.close()
        for spawner in self._spawners:
            spawner.close()

    def health(self) -> dict[str, Any]:
        """Its capacity, and the facts that verdicts on correctness depend on."""
        facts = {name: getattr(self._trials.stamp, name) for name in STAMPED}
        return {"ok": True, "capacity": self._concurrency, **facts}

    async def judge(self, problem: ReferenceModule, code: str, options: JudgeOptions) -> Verdict:
        """One verdict. Waits for a free slot."""
        async with self._slot():
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
        """Waits for a free slot, and replaces zygotes that are gone."""
        async with self._slots:
            async with self._restarting:
                for spawner in self._spawners:
                    if spawner.is_running:
                        continue
                    logger.warning("a zygote is gone; a new one is started")
                    spawner.start()
                    try:
                        await anyio.to_thread.run_sync(spawner.wait_ready)
                    except ZygoteGone as error:
                        logger.error("%s", error)
            yield


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

    posted = {"/judge": judge_one, "/examine": examine_one, "/harvest": harvest_one}
    routes = [Route(path, answer, methods=["POST"]) for path, answer in posted.items()]
    routes.append(Route("/health", health))
    return Starlette(routes=routes, middleware=[Middleware(Door)], lifespan=lifespan)


def _refuse(error: ZygoteGone) -> None:
    """Logs the error where the supervisor reads it, and ends with its exit code."""
    kind: type[ForgeError] = MachineError
    match error:
        case UnusableInstallation():
            words = "no kernel can be judged with this installation"
            fix = '; "make setup" installs what works'
        case SandboxRefused():
            words = "no sandbox for candidates on this machine"
            fix = f"; {advice(uid=os.geteuid(), sysctls=read_sysctls())}"
            fix += '; or write [judge] isolation = "none"'
        case LimitMet():
            words, fix = "no candidate can be started", ""
        case _:
            kind, words, fix = ChildDied, "no candidate can be judged", ""
    message = f"{words}: {error}{fix}"
    logger.error("%s: %s%s", kind.__name__, message, limit_behind(message))
    sys.stderr.flush()
    os._exit(kind.exit_code)
