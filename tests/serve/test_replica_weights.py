"""Real Replicas over fake engines: weights, sleep and wake."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from forge.config.schema import ServeTable
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.sockets import open_socket_dir
from forge.records import Prompt
from forge.serve.engines import ENGINES, EngineKind
from forge.serve.replica import ReplicaClient
from forge.serve.replicas import open_replicas
from forge.serve.served import BLOCK_TOKENS
from forge.serve.weights import Weights
from tests.serve.conftest import Reference
from tests.serve.made_up_replicas import Client, come_up, go_down, made_up_replicas
from tests.serve.observed import Lives


async def test_an_adapter_that_is_published_again_is_loaded_with_its_base(tmp_path: Path) -> None:
    client, adapter = Client(), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").touch()
    replicas = made_up_replicas(tmp_path, client)
    for _ in range(2):
        await replicas.publish(adapter, 1)
    assert client.loads == [("adapter", 1), ("old", 1), ("adapter", 1)]


async def test_an_engine_that_ends_cannot_get_weights_that_are_no_files(tmp_path: Path) -> None:
    replicas = made_up_replicas(tmp_path, Client())
    shared = tmp_path / "grpo-3"
    shared.mkdir()
    (shared / "shared.json").touch()
    await replicas.publish(shared, 3)
    (replica,) = replicas.all
    go_down(replica)
    with pytest.raises(
        MachineError, match=r"serve-0 ended.* version 3 are no files \(serve.weights"
    ):
        await replica._live(anyio.TASK_STATUS_IGNORED)


async def test_after_a_failed_load_the_old_weights_are_loaded_again(tmp_path: Path) -> None:
    client, other = Client(), Client()
    client.failures = [MachineError("half written")]
    replicas = made_up_replicas(tmp_path, client, other)
    with pytest.raises(MachineError, match="half written"):
        await replicas.publish(tmp_path / "new", 1)
    assert client.loads == other.loads == [("new", 1), ("old", 0)]
    assert all(replica.is_up for replica in replicas.all)


async def test_after_a_refused_load_nothing_is_loaded_again(tmp_path: Path) -> None:
    client = Client()
    client.failures = [ConfigError("truncated")]
    replicas = made_up_replicas(tmp_path, client)
    with pytest.raises(ConfigError):
        await replicas.publish(tmp_path / "new", 1)
    assert client.loads == [("new", 1)]
    assert replicas.all[0].is_up


async def test_abandoned_weights_are_loaded_again_even_if_the_rollback_was_refused(
    tmp_path: Path,
) -> None:
    failing, other, adapter = Client(), Client(), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").touch()
    replicas = made_up_replicas(tmp_path, failing, other)
    await replicas.publish(adapter, 1)
    failing.failures = [MachineError("half written")]
    other.failures = [None, None, ConfigError("it is damaged by now")]
    with pytest.raises(ConfigError):
        await replicas.publish(tmp_path / "new", 2)
    assert other.loads == [("adapter", 1), ("new", 2), ("old", 1), ("adapter", 1)]
    assert not replicas.all[1].is_up
    await replicas.publish(tmp_path / "new", 2)
    assert other.loads[4:] == [("new", 2)]


class Dying(Client):
    """Hangs up when it is asked for a score."""

    async def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        raise ChildDied("serve-0 hung up; asked: POST /score")


async def test_a_probe_of_a_replica_that_stays_down_names_it(tmp_path: Path) -> None:
    replicas = made_up_replicas(tmp_path, Dying())
    replicas._through_restart_s = 0.05
    with pytest.raises(Stalled, match="serve-0 was silent"):
        await replicas.probe([1], [2])


async def test_new_weights_make_the_router_forget_prefixes(tmp_path: Path) -> None:
    replicas = made_up_replicas(tmp_path, Client(), Client())
    replicas.router.has_prefix_cache = True
    first, second = replicas.all

    async def chosen() -> str:
        async with replicas.seated(list(range(4 * BLOCK_TOKENS)), n=1) as server:
            return server.name

    assert await chosen() == first.name
    first.load = 2
    assert await chosen() == first.name, "hardly busier"
    await replicas.publish(tmp_path / "new", 1)
    replicas.router.has_prefix_cache = True
    assert await chosen() == second.name


@pytest.mark.slow
async def test_sleep_waits_for_running_samples_stops_restarts_and_ends_with_wake_or_weights(
    tied: Reference, newer: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = EngineKind(
        module="tests.serve.sleeping_engine", requires=(), advice="", start_timeout_s=30.0
    )
    monkeypatch.setitem(ENGINES, "hf", sleeper)
    lives, order = Lives(), []
    with open_socket_dir() as sockets, anyio.fail_after(60):
        async with (
            open_replicas(
                ServeTable(engine="hf"), weights=Weights(full=tied.path), stop_token_ids=(),
                socket_dir=sockets, log_dir=tmp_path, work_dir=tmp_path, observer=lives,
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

                os.kill(lives.pids["serve-0"][0], signal.SIGKILL)
                while replicas.all[0].health:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                await replicas.sleep()
                await anyio.sleep(0.5)
                assert len(lives.pids["serve-0"]) == 1, (
                    "no restart until wake: the trainer has the GPU"
                )
                assert len(order) == 2
                await replicas.wake()
            assert order[2:] == ["asked asleep by 0"]
            assert len(lives.pids["serve-0"]) == 2

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
