"""What replicas are sent when a load goes wrong: the real ones, over clients that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.serve.made_up_replicas import Client, made_up_replicas

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_is_published_again_is_loaded_again(tmp_path: Path) -> None:
    client = Client()
    replicas = made_up_replicas(tmp_path, client)
    for _ in range(2):
        await replicas.publish(tmp_path / "new", 1)
    assert client.loads == [("new", 1), ("new", 1)]


async def test_an_adapter_that_is_published_again_comes_with_what_it_lies_on(
    tmp_path: Path,
) -> None:
    client, adapter = Client(), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").touch()
    replicas = made_up_replicas(tmp_path, client)
    for _ in range(2):
        await replicas.publish(adapter, 1)
    assert client.loads == [("adapter", 1), ("old", 1), ("adapter", 1)]
