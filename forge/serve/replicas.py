"""All replicas of a stage: requests go to the least loaded, new weights go to all, the dead are
replaced.

Opened by the runner; `generate` is the loop's port Generate. Promises: a request lost with a
replica is asked again elsewhere and counted once; `publish` returns when every replica has
acknowledged the version, and changes nothing where one refuses it.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.child import ChildSpec, ProcessObserver
from forge.process.environment import child_env
from forge.serve.engines import check_engine, engine_argv, start_timeout_s
from forge.serve.replica import Replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from forge.config.schema import ServeTable
    from forge.records import Completion
    from forge.serve.weights import Weights

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""Of one request, over replicas and restarts."""
RETRY_PAUSE_S = 0.3
"""A dying child hangs up before the kernel says that it is dead."""
ALL_GPU_LAYERS = 999
"""llama.cpp's "all of them"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStats:
    """Sums over the replicas, since they were opened. None of them falls but running and
    waiting.
    """

    generated_tokens: int
    busy_s: float
    """Seconds with a request in progress, summed: divide by num_replicas for a share."""
    running: int
    """Samples in slots."""
    waiting: int
    num_replicas: int
    num_restarts: int


class Replicas:
    """What `open_replicas` yields."""

    def __init__(self, table: ServeTable, stop_token_ids: Sequence[int], weights: Weights) -> None:
        self._table = table
        self._stop_token_ids = tuple(stop_token_ids)
        self._weights = weights
        self._replicas: list[Replica] = []
        self._publishing = anyio.Lock()
        self._came_up = anyio.Event()

    def add(self, spec: ChildSpec, *, observer: ProcessObserver | None) -> None:
        """One more, not started yet."""
        self._replicas.append(
            Replica(
                spec,
                weights=self._weights,
                request_timeout_s=self._table.request_timeout_s,
                observer=observer,
                on_up=self._note_up,
            )
        )

    @property
    def all(self) -> tuple[Replica, ...]:
        return tuple(self._replicas)

    @property
    def version(self) -> int:
        """Policy version that all replicas serve."""
        return self._weights.version

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> list[Completion]:
        """Sample `n` continuations on one replica, so that the prompt is evaluated once."""
        for attempt in range(ATTEMPTS):
            replica = await self._least_loaded()
            try:
                return await replica.complete(
                    prompt_ids,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed,
                    stop_token_ids=self._stop_token_ids,
                )
            except ChildDied as error:
                if attempt == ATTEMPTS - 1:
                    raise
                logger.warning("%s; asking again", error)
                await anyio.sleep(RETRY_PAUSE_S)
        raise AssertionError("the loop returns or raises")

    async def publish(self, path: Path, version: int) -> None:
        """Serve the weights of a directory everywhere, as `version`.

        Raises ConfigError, with the old weights served again by all, where a replica refuses them.
        """
        async with self._publishing:
            before = self._weights
            try:
                await self._serve_everywhere(before.then(path, version=version))
            except (ConfigError, MachineError):
                await self._serve_everywhere(before)
                raise

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        """What each replica thinks of the same tokens: log probabilities, in the order of their
        names.
        """
        answers: list[list[float]] = [[] for _ in self._replicas]

        async def ask(index: int, replica: Replica) -> None:
            answers[index] = await replica.score(prompt_ids, completion_ids)

        await _for_each(self._replicas, ask)
        return answers

    def stats(self) -> ServeStats:
        """Counters as of now."""
        replicas, slots = self._replicas, self._table.slots
        return ServeStats(
            generated_tokens=sum(r.generated_tokens for r in replicas),
            busy_s=sum(r.busy_s for r in replicas),
            running=sum(min(r.load, slots) for r in replicas),
            waiting=sum(max(r.load - slots, 0) for r in replicas),
            num_replicas=len(replicas),
            num_restarts=sum(r.num_deaths for r in replicas),
        )

    async def _least_loaded(self) -> Replica:
        with anyio.move_on_after(start_timeout_s(self._table)):
            while not (up := [replica for replica in self._replicas if replica.is_up]):
                await self._came_up.wait()
            return min(up, key=lambda replica: replica.load)
        names = ", ".join(replica.name for replica in self._replicas)
        raise Stalled(
            f"no replica came up within {start_timeout_s(self._table):.0f} s; waited for: {names}"
        )

    async def _serve_everywhere(self, weights: Weights) -> None:
        self._weights = weights
        timeout_s = start_timeout_s(self._table) + self._table.request_timeout_s

        async def ask(_index: int, replica: Replica) -> None:
            await replica.serve(weights, timeout_s=timeout_s)

        await _for_each(self._replicas, ask)

    def _note_up(self) -> None:
        self._came_up.set()
        self._came_up = anyio.Event()


async def _for_each(
    replicas: Sequence[Replica], ask: Callable[[int, Replica], Awaitable[None]]
) -> None:
    """Ask all at once; the first error raised on purpose comes out bare."""
    failures: list[ForgeError] = []

    async def one(index: int, replica: Replica) -> None:
        try:
            await ask(index, replica)
        except ForgeError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        for index, replica in enumerate(replicas):
            group.start_soon(one, index, replica)
    if failures:
        raise failures[0]


@asynccontextmanager
async def open_replicas(
    table: ServeTable,
    *,
    weights: Weights,
    stop_token_ids: Sequence[int],
    socket_dir: Path,
    log_dir: Path,
    work_dir: Path,
    observer: ProcessObserver | None = None,
    gpus: Sequence[Sequence[str]] = (),
) -> AsyncIterator[Replicas]:
    """Start `table.replicas` engines and keep them up until the context ends.

    Args:
        weights: served before this yields, its adapter included.
        stop_token_ids: end every completion.
        work_dir: for files that engines need while they load weights.
        gpus: UUIDs of each replica; absent means CPU.

    Raises:
        MachineError: the engine is not installed.
        ChildDied, Stalled: a replica did not start; or it died too often, which cancels the body.
    """
    check_engine(table)
    work_dir.mkdir(parents=True, exist_ok=True)
    replicas = Replicas(table, stop_token_ids, weights)
    async with anyio.create_task_group() as group:
        for index in range(table.replicas):
            spec = _spec(
                table,
                name=f"serve-{index}",
                socket_dir=socket_dir,
                log_dir=log_dir,
                gpus=gpus[index] if gpus else (),
                config={
                    "work_dir": str(work_dir.absolute()),
                    "stop_token_ids": list(stop_token_ids),
                },
            )
            replicas.add(spec, observer=observer)
        async with anyio.create_task_group() as starting:
            for replica in replicas.all:
                starting.start_soon(group.start, replica.keep)
        try:
            yield replicas
        finally:
            group.cancel_scope.cancel()


def _spec(
    table: ServeTable,
    *,
    name: str,
    socket_dir: Path,
    log_dir: Path,
    gpus: Sequence[str],
    config: dict[str, Any],
) -> ChildSpec:
    socket_path = socket_dir / f"{name}.sock"
    return ChildSpec(
        name=name,
        argv=engine_argv(table),
        log_path=log_dir / f"{name}.log",
        env=child_env(threads=table.threads, gpus=gpus, extra=table.env),
        socket_path=socket_path,
        config={
            **config,
            "socket_path": str(socket_path),
            "slots": table.slots,
            "context_tokens": table.context_tokens,
            "threads": table.threads,
            "precision": table.precision,
            "gpu_layers": ALL_GPU_LAYERS if gpus else 0,
        },
        ready_timeout_s=start_timeout_s(table),
        devices=",".join(gpus) or "cpu",
    )
