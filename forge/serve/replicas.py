# pyright: strict
"""All replicas of a stage: kept alive, asked through a router, given new weights together; and the
child of a replica, here or on another machine (`forge.cluster.roles` starts it there).

Promise: `publish` returns when every engine has acknowledged the version, and changes nothing if
one refuses it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from forge.config.schema import ServeTable, with_half_a_card
from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.child import ChildSpec, ProcessObserver
from forge.process.devices import visibility
from forge.process.environment import child_env
from forge.records import EngineLoad
from forge.serve.engines import check_adapters, check_engine, engine_argv, resolve, start_timeout_s
from forge.serve.port import PREFIX_CACHE, SLEEP
from forge.serve.replica import OpenEngineElsewhere, Replica
from forge.serve.served import Served
from forge.serve.weights import Weights

ALL_GPU_LAYERS = 999
"""Value for "all layers" in llama.cpp."""
OF_TABLE = {
    "slots", "context_tokens", "threads", "precision", "memory_share", "tensor_parallel", "eager",
}  # fmt: skip
COMMON = ("stop_token_ids", "max_lora_rank", "thinking", "version")
"""Keys of an engine's config that are the same at home and elsewhere."""


class Replicas(Served):
    """The replicas of a stage, whose weights change together. Made by `open_replicas`."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, table: ServeTable, weights: Weights,
        stop_token_ids: Sequence[int], observer: ProcessObserver | None = None,
        elsewhere: OpenEngineElsewhere | None = None,
    ) -> None:  # fmt: skip
        """Prepare one replica per spec; none is started yet."""
        through_restart_s = start_timeout_s(table) + table.request_timeout_s
        replicas = [
            Replica(
                spec, weights=weights, request_timeout_s=table.request_timeout_s,
                observer=observer, on_up=self.note_up, elsewhere=elsewhere,
                on_death=lambda name: self.router.forget(name),
            )
            for spec in specs
        ]  # fmt: skip
        super().__init__(
            replicas, stop_token_ids=stop_token_ids, slots=table.slots, wait_s=through_restart_s
        )
        self.all, self.weights = tuple(replicas), weights
        self._request_timeout_s = table.request_timeout_s
        self._through_restart_s = through_restart_s
        """Maximum wait for an answer of an engine that has to be started for it."""
        self._publishing = anyio.Lock()

    @property
    def version(self) -> int:
        return self.weights.version

    @property
    def features(self) -> frozenset[str]:
        return frozenset[str].intersection(*(each.features for each in self.all))

    def load(self) -> EngineLoad | None:
        known = [each.health for each in self.all if each.health]
        if not known:
            return None
        return EngineLoad(
            kv_use=max(health["kv_use"] for health in known),
            running=sum(health["running"] for health in known),
            waiting=sum(health["waiting"] for health in known),
            slots=self._slots * len(known),
        )

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        """Serve the weights of a directory everywhere, as `version`. Wakes sleeping engines, and
        loads weights again that are already served. `rolling`: one server after the other, each
        when its requests have ended; else all at once, during requests.

        Raises:
            ConfigError: a server refused the weights; all serve the old ones again.
            Stalled: a server was silent.
        """
        weights = self.weights.then(path, version=version)
        async with self._publishing:
            await self.for_each(lambda each: each.wake())
            before = self.weights
            if weights == before:
                for server in self.all:
                    server.doubt()
            try:
                await self._serve_everywhere(weights, rolling=rolling)
            except (ConfigError, MachineError):
                await self._serve_everywhere(before, rolling=False)
                raise
            finally:
                self.release()  # requests that waited for a wake get the new weights

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        answers: dict[str, list[list[float]]] = {}

        async def ask(server: Replica) -> None:
            answers[server.name] = await server.scores(
                prompt_ids, completion_ids, timeout_s=self._through_restart_s
            )

        await self.for_each(ask)
        return [answer for server in self.all for answer in answers[server.name]]

    async def sleep(self) -> None:
        """Release GPU memory once running requests have ended; nothing if an engine cannot."""
        if SLEEP not in self.features:
            return
        self.hold()
        try:
            await self.for_each(lambda each: each.sleep(timeout_s=self._through_restart_s))
        except BaseException:
            self.release()
            raise

    async def wake(self) -> None:
        await self.for_each(lambda each: each.wake())
        self.release()

    async def _serve_everywhere(self, weights: Weights, *, rolling: bool) -> None:
        self.weights = weights

        async def ask(server: Replica) -> None:
            await server.serve(weights, timeout_s=self._through_restart_s)
            self.router.forget(server.name)

        if not rolling:
            return await self.for_each(ask)
        for server in self.all:
            try:
                await server.drain(timeout_s=self._request_timeout_s)
                await ask(server)
            finally:
                server.is_draining = False
                if server.is_up:
                    self.note_up()

    async def for_each(self, ask: Callable[[Replica], Awaitable[None]]) -> None:
        """Call `ask` for all at once. Raises the first ForgeError, without an exception group."""
        failures: list[ForgeError] = []

        async def one(server: Replica) -> None:
            try:
                await ask(server)
            except ForgeError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for server in self.all:
                group.start_soon(one, server)
        if failures:
            raise failures[0]

    def note_up(self) -> None:
        self.router.has_prefix_cache = PREFIX_CACHE in self.features
        super().note_up()


@asynccontextmanager
async def open_replicas(
    table: ServeTable, *, weights: Weights, stop_token_ids: Sequence[int], socket_dir: Path,
    log_dir: Path, work_dir: Path, observer: ProcessObserver | None = None,
    gpus: Sequence[Sequence[str]] = (), shared: frozenset[str] = frozenset(),
    trainer_gpus: Sequence[str] = (), max_lora_rank: int = 0, thinking: str | None = None,
    elsewhere: OpenEngineElsewhere | None = None,
) -> AsyncGenerator[Replicas]:  # fmt: skip
    """Start `table.replicas` engines and keep them up until the context ends.

    Args:
        weights: served before this yields, its adapter included.
        stop_token_ids: tokens that end every completion.
        work_dir: folder for files that engines need while they load weights.
        gpus: UUIDs per replica; empty means CPU.
        shared: UUIDs of GPUs where engines run each step under a lease.
        trainer_gpus: UUIDs of GPUs whose memory engines read.
        max_lora_rank: maximum rank of adapters that will be published; 0 for none.
        thinking: `prompt.thinking`, for chats with the engines; None for the template's default.
        elsewhere: starts engines on other machines, which check their own installation.

    Raises:
        MachineError: the engine is not installed, or no other machine has room.
        ConfigError: it cannot serve adapters in that precision.
        ChildDied, Stalled: a replica did not start, or died too often; that cancels the body.
    """
    all_gpus = [uuid for each in gpus for uuid in each]
    if elsewhere is None:
        table = resolve(table, gpus=all_gpus)
        check_engine(table, gpus=all_gpus)
    check_adapters(table, max_lora_rank=max_lora_rank)
    work_dir.mkdir(parents=True, exist_ok=True)
    specs: list[ChildSpec] = []
    for index in range(table.replicas):
        own = gpus[index] if gpus else ()
        config = {
            "work_dir": str(work_dir.absolute()),
            "stop_token_ids": list(stop_token_ids),
            "max_lora_rank": max_lora_rank,
            "thinking": thinking,
            "shared_gpus": [uuid for uuid in own if uuid in shared],
        }
        folders = {"socket_dir": socket_dir, "log_dir": log_dir}
        spec = engine_spec(table, index=index, gpus=own, config=config, **folders)
        seen = visibility(list(dict.fromkeys((*own, *trainer_gpus)))) if trainer_gpus else {}
        specs.append(replace(spec, env={**spec.env, **seen}))
    replicas = Replicas(
        specs, table=table, weights=weights, stop_token_ids=stop_token_ids, observer=observer,
        elsewhere=elsewhere,
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as starting:
            for replica in replicas.all:
                starting.start_soon(group.start, replica.keep)
        for replica in replicas.all:
            group.start_soon(replica.watch)
        try:
            yield replicas
        finally:
            group.cancel_scope.cancel()


def engine_spec(
    table: ServeTable, *, index: int, socket_dir: Path, log_dir: Path, gpus: Sequence[str],
    config: dict[str, Any],
) -> ChildSpec:  # fmt: skip
    """The child of a replica; `config` has what the engines of a stage have in common."""
    name = f"serve-{index}"
    socket_path = socket_dir / f"{name}.sock"
    return ChildSpec(
        name=name,
        argv=engine_argv(table),
        log_path=log_dir / f"{name}.log",
        env=child_env(threads=table.threads, gpus=gpus, extra=table.env),
        socket_path=socket_path,
        config={
            **config,
            **table.model_dump(mode="json", include=OF_TABLE),
            "socket_path": str(socket_path),
            "gpu_layers": ALL_GPU_LAYERS if gpus else 0,
            # Replicas with equal seeds would sample alike if the engine has no seed per request.
            "seed": index,
        },
        ready_timeout_s=start_timeout_s(table),
        devices=",".join(gpus) or "cpu",
    )


def settings_elsewhere(spec: ChildSpec, table: ServeTable) -> dict[str, Any]:
    """The part of a replica's spec that its engine elsewhere needs, as JSON."""
    return {
        "table": table.model_dump(mode="json"),
        "common": {key: spec.config[key] for key in COMMON},
    }


def spec_elsewhere(
    settings: Mapping[str, Any], *, index: int, model_dir: str, folder: Path, work: Path,
    gpus: Sequence[str], shares_gpu: bool,
) -> ChildSpec:  # fmt: skip
    """The engine of a replica on this machine, with its own installation and cards. `settings` are
    from `settings_elsewhere`; `folder` is for its socket and log, `work` for its own files. Raises
    MachineError if the engine is not installed here."""
    table = resolve(ServeTable.model_validate(settings["table"]), gpus=gpus)
    check_engine(table, gpus=gpus)
    own: dict[str, Any] = {
        "work_dir": str(work), "model_dir": model_dir, "shared_gpus": gpus if shares_gpu else [],
    }  # fmt: skip
    if shares_gpu:
        table = with_half_a_card(table)
    return engine_spec(
        table, index=index, socket_dir=folder, log_dir=folder, gpus=gpus,
        config={**own, **settings["common"]},
    )  # fmt: skip
