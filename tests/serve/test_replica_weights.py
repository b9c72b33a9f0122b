"""Loads that real replicas send when one fails. Their clients are fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.serve.router import BLOCK_TOKENS
from tests.serve.made_up_replicas import Client, come_up, go_down, made_up_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_weights_that_are_published_again_are_loaded_again(tmp_path: Path) -> None:
    client = Client()
    replicas = made_up_replicas(tmp_path, client)
    for _ in range(2):
        await replicas.publish(tmp_path / "new", 1)
    assert client.loads == [("new", 1), ("new", 1)]


async def test_an_adapter_that_is_published_again_is_loaded_with_its_base(
    tmp_path: Path,
) -> None:
    client, adapter = Client(), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").touch()
    replicas = made_up_replicas(tmp_path, client)
    for _ in range(2):
        await replicas.publish(adapter, 1)
    assert client.loads == [("adapter", 1), ("old", 1), ("adapter", 1)]


async def test_after_a_failed_load_the_old_weights_are_loaded_again(
    tmp_path: Path,
) -> None:
    client, other = Client(), Client()
    client.failures = [MachineError("half written")]
    replicas = made_up_replicas(tmp_path, client, other)
    with pytest.raises(MachineError, match="half written"):
        await replicas.publish(tmp_path / "new", 1)
    assert client.loads == other.loads == [("new", 1), ("old", 0)]
    assert all(replica.is_up for replica in replicas.all)


async def test_a_replica_that_fails_twice_gets_no_requests(tmp_path: Path) -> None:
    client = Client()
    client.failures = [MachineError("half written"), MachineError("nor back")]
    replicas = made_up_replicas(tmp_path, client)
    with pytest.raises(MachineError):
        await replicas.publish(tmp_path / "new", 1)
    assert not replicas.all[0].is_up


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


async def test_a_probe_waits_for_the_restart_of_a_replica(tmp_path: Path) -> None:
    back, other = Client(), Client()
    back.loaded = other.loaded = "new"
    replicas = made_up_replicas(tmp_path, Dying(), other)

    async def restart() -> None:
        await anyio.sleep(0.05)
        go_down(replicas.all[0])
        await anyio.sleep(0.15)
        come_up(replicas.all[0], back)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            assert await replicas.probe([1], [2, 3]) == [[0.0, 0.0], [0.0, 0.0]]


async def test_a_probe_of_a_replica_that_stays_down_names_it(tmp_path: Path) -> None:
    replicas = made_up_replicas(tmp_path, Dying())
    replicas._through_restart_s = 0.05
    with pytest.raises(Stalled, match="serve-0 was silent"):
        await replicas.probe([1], [2])


async def test_new_weights_make_the_router_forget_prefixes(
    tmp_path: Path,
) -> None:
    replicas = made_up_replicas(tmp_path, Client(), Client())
    replicas.router.has_prefix_cache = True
    first, second = replicas.all

    async def chosen() -> str:
        async with replicas.seated(list(range(4 * BLOCK_TOKENS)), n=1) as server:
            return server.name

    assert await chosen() == first.name
    first.load = 2
    assert await chosen() == first.name, "hardly busier"
    replicas.router.answered(second.name, seconds=1.0, num_tokens=10)
    replicas.router.was_silent(second.name, now=0.0)
    await replicas.publish(tmp_path / "new", 1)
    replicas.router.has_prefix_cache = True
    assert await chosen() == second.name
    assert replicas.router.is_avoided(second.name, now=1.0), "the same process"
