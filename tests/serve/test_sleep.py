"""Replicas that sleep while the trainer steps on their card: real processes around a made-up
engine, since those that can sleep need a GPU.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from forge.config.schema import ServeTable
from forge.process.sockets import open_socket_dir
from forge.records import Prompt
from forge.serve.client import ReplicaClient
from forge.serve.engines import ENGINES, EngineKind
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights
from tests.serve.made_up_replicas import Client, come_up, go_down, made_up_replicas
from tests.serve.observed import Pids

if TYPE_CHECKING:
    from conftest import Reference

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_sleep_waits_for_running_samples_stops_restarts_and_ends_with_wake_or_weights(
    tied: Reference, newer: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = EngineKind(
        module="tests.serve.sleeping_engine", requires=(), advice="", start_timeout_s=30.0
    )
    monkeypatch.setitem(ENGINES, "hf", sleeper)
    pids, order = Pids(), []
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with (
            open_replicas(
                ServeTable(engine="hf"), weights=Weights(full=tied.path), stop_token_ids=(),
                socket_dir=sockets, log_dir=tmp_path, work_dir=tmp_path, observer=pids,
            ) as replicas,
            ReplicaClient(sockets / "serve-0.sock") as client,
        ):  # fmt: skip

            async def ask(name: str, tenths: int) -> None:
                (one,) = await replicas.generate(
                    Prompt(ids=(tenths,)), n=1, max_tokens=3, temperature=1.0, seed=0
                )
                order.append(f"{name} by {one.max_version}")

            async with anyio.create_task_group() as group:
                group.start_soon(ask, "began before", 5)
                await anyio.sleep(0.1)
                await replicas.sleep()
                order.append("asleep")
                assert (await client.health())["is_asleep"]
                group.start_soon(ask, "asked asleep", 0)
                await anyio.sleep(0.3)
                assert order == ["began before by 0", "asleep"]

                os.kill(pids.all[0], signal.SIGKILL)
                while replicas.all[0].health:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                await replicas.sleep()
                await anyio.sleep(0.5)
                assert len(pids.all) == 1, "no restart until wake: the trainer has the GPU"
                assert len(order) == 2
                await replicas.wake()
            assert order[2:] == ["asked asleep by 0"]
            assert len(pids.all) == 2

            await replicas.sleep()
            await replicas.sleep()
            async with anyio.create_task_group() as group:
                group.start_soon(ask, "asked before the publish", 0)
                await anyio.sleep(0.1)
                await replicas.publish(newer.path, 1)
            assert order[3:] == ["asked before the publish by 1"]
            assert not (await client.health())["is_asleep"]


@pytest.mark.slow
async def test_engines_that_cannot_sleep_continue(tied: Reference, tmp_path: Path) -> None:
    table = ServeTable(engine="llama", slots=2, context_tokens=128)
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with open_replicas(
            table, weights=Weights(full=tied.path), stop_token_ids=(), socket_dir=sockets,
            log_dir=tmp_path, work_dir=tmp_path,
        ) as replicas:  # fmt: skip
            await replicas.sleep()
            (one,) = await replicas.generate(
                Prompt(ids=(1,)), n=1, max_tokens=3, temperature=1.0, seed=0
            )
            assert len(one.token_ids) == 3


async def test_sleep_includes_an_engine_that_is_starting(tmp_path: Path) -> None:
    client = Client()
    replicas = made_up_replicas(tmp_path, client)
    go_down(replicas.all[0])
    assert "sleep" in replicas.features, "features are kept"
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replicas.sleep)
            await anyio.sleep(0.15)
            assert not client.is_asleep
            come_up(replicas.all[0], client)
        assert client.is_asleep, "sleep returned"
        assert not replicas.all[0].is_up
        await replicas.wake()
        assert not client.is_asleep
        assert replicas.all[0].is_up
