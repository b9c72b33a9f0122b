# pyright: strict
"""All replicas of a stage: kept alive, asked through a router, given new weights together; and the
child of a replica, here or on another machine (`forge.cluster.roles` starts it there).

Opened by the runner; `generate` is the loop's port Generate (`forge.serve.served`), `publish` is
that of `forge.serve.weights`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from forge.config.schema import ServeTable, with_half_a_card
from forge.process.child import ChildSpec, ProcessObserver
from forge.process.devices import visibility
from forge.process.environment import child_env
from forge.serve.engines import (
    check_adapters,
    check_engine,
    engine_argv,
    resolve,
    start_timeout_s,
)
from forge.serve.port import SLEEP
from forge.serve.replica import OpenEngineElsewhere, Replica
from forge.serve.weights import Publishing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from forge.serve.weights import Weights

ALL_GPU_LAYERS = 999
"""Value for "all layers" in llama.cpp."""
COMMON = ("stop_token_ids", "max_lora_rank", "thinking", "version")
"""Keys of an engine's config that are the same at home and elsewhere."""


class Replicas(Publishing[Replica]):
    """The replicas of a stage. Made by `open_replicas`."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, table: ServeTable, weights: Weights,
        stop_token_ids: Sequence[int], observer: ProcessObserver | None = None,
        elsewhere: OpenEngineElsewhere | None = None,
    ) -> None:  # fmt: skip
        """Prepare one replica per spec; none is started yet. `elsewhere` starts their engines on
        other machines."""
        through_restart_s = start_timeout_s(table) + table.request_timeout_s
        replicas = [
            Replica(
                spec,
                weights=weights,
                request_timeout_s=table.request_timeout_s,
                observer=observer,
                on_up=self.note_up,
                on_death=lambda name: self.router.forget(name),
                elsewhere=elsewhere,
            )
            for spec in specs
        ]
        super().__init__(
            replicas, weights=weights, stop_token_ids=stop_token_ids, slots=table.slots,
            request_timeout_s=table.request_timeout_s, through_restart_s=through_restart_s,
            wait_s=through_restart_s,
        )  # fmt: skip

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
    shared: frozenset[str] = frozenset(),
    trainer_gpus: Sequence[str] = (),
    max_lora_rank: int = 0,
    thinking: str | None = None,
    elsewhere: OpenEngineElsewhere | None = None,
) -> AsyncGenerator[Replicas]:
    """Start `table.replicas` engines and keep them up until the context ends.

    Args:
        weights: served before this yields, its adapter included.
        stop_token_ids: tokens that end every completion.
        work_dir: folder for files that engines need while they load weights.
        gpus: UUIDs per replica; empty means CPU.
        shared: UUIDs of GPUs with other users: engines run each step under a lease.
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
    table: ServeTable,
    *,
    index: int,
    socket_dir: Path,
    log_dir: Path,
    gpus: Sequence[str],
    config: dict[str, Any],
) -> ChildSpec:
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
            "slots": table.slots,
            "context_tokens": table.context_tokens,
            "threads": table.threads,
            "precision": table.precision,
            "memory_share": table.memory_share,
            "tensor_parallel": table.tensor_parallel,
            "eager": table.eager,
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
    """The engine of a replica on this machine, with its own installation and cards.

    Raises MachineError if the engine is not installed here.

    Args:
        settings: from `settings_elsewhere`.
        folder: for its socket and its log. `work` is for its own files.
        shares_gpu: its card may have another child of the run.
    """
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
