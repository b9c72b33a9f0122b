"""Replicas whose engines run on other machines, over made-up engines: lost, without room, back."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.schema import ServeTable
from forge.errors import ChildDied, NoRoom
from forge.process.child import ChildSpec
from forge.records import Completion, Finish, Prompt
from forge.serve import replica as replica_module
from forge.serve.replicas import Replicas, open_replicas
from forge.serve.weights import Weights
from tests.serve.made_up_replicas import Client
from tests.serve.observed import until

COMPLETION = Completion(
    token_ids=(1,), logprobs=(0.0,), finish=Finish.STOP, min_version=0, max_version=0
)


class HealthyClient(Client):
    """A made-up client with a health, and a connection that may be broken."""

    is_broken = False
    num_asked = 0

    async def health(self) -> dict[str, Any]:
        self._require_connection()
        return {"features": []}

    async def complete(self, *_prompt: Any, **_options: Any) -> list[Completion]:
        self.num_asked += 1
        self._require_connection()
        return [COMPLETION]

    def _require_connection(self) -> None:
        if self.is_broken:
            raise ChildDied("serve-0 hung up; asked: POST /v1/completions")

    async def aclose(self) -> None:
        """Nothing to close."""


class Engine:
    def __init__(self, name: str) -> None:
        self.name, self.client = name, HealthyClient()
        self.brought: list[str] = []
        self._ended = anyio.Event()

    @property
    def is_alive(self) -> bool:
        return not self._ended.is_set()

    async def wait(self) -> str:
        await self._ended.wait()
        return "its node was lost"

    async def kill(self) -> None:
        self._ended.set()

    def dump_stacks(self) -> None:
        """It has none."""

    def died(self, *, doing: str = "") -> ChildDied:
        return ChildDied(f"{self.name} died {doing}")

    async def bring(self, path: Path) -> Path:
        self.brought.append(path.name)
        return Path("/far") / path.name


class Machines:
    """Machines with room for engines while `has_room`."""

    def __init__(self) -> None:
        self.has_room = True
        self.engines: list[Engine] = []
        self.started_on: list[str] = []
        """Name of the checkpoint of each start."""

    @asynccontextmanager
    async def open(self, spec: ChildSpec) -> AsyncGenerator[Any]:
        if not self.has_room:
            raise NoRoom("no node has room")
        self.started_on.append(Path(spec.config["model_dir"]).name)
        self.engines.append(Engine(spec.name))
        yield self.engines[-1]


def opened(folder: Path, machines: Machines, **table: Any) -> AbstractAsyncContextManager[Replicas]:
    return open_replicas(
        ServeTable(engine="llama", **table), weights=Weights(full=folder / "old"),
        stop_token_ids=(), socket_dir=folder, log_dir=folder, work_dir=folder / "work",
        elsewhere=machines.open,
    )  # fmt: skip


async def test_publishes_go_on_without_an_engine_that_has_no_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "NO_ROOM_PAUSE_S", 0.01)
    machines = Machines()
    async with opened(tmp_path, machines, replicas=2) as replicas:
        machines.has_room = False
        lost = next(each for each in replicas.all if each.name == machines.engines[0].name)
        await machines.engines[0].kill()
        await until(lambda: lost.is_absent)
        with anyio.fail_after(5):
            await replicas.publish(tmp_path / "new", 1)
            assert len(await replicas.probe([1], [2])) == 1
        assert machines.engines[1].brought == ["new"]
        assert machines.engines[1].client.loads == [("new", 1)]
        machines.has_room = True
        await until(lambda: lost.is_up)
        assert not lost.is_absent
        assert machines.started_on == ["old", "old", "new"]
        assert len(await replicas.probe([1], [2])) == 2


async def test_an_engine_without_room_at_the_start_is_one_line(tmp_path: Path) -> None:
    machines = Machines()
    machines.has_room = False
    with pytest.raises(ExceptionGroup) as raised:
        async with opened(tmp_path, machines):
            pytest.fail("it was opened")
    assert raised.group_contains(NoRoom, match="^no node has room$", depth=None)


@pytest.mark.parametrize("returns", [False, True])
async def test_a_request_waits_until_a_lost_engine_is_replaced_or_answers_again(
    returns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of a node is known seconds after its connections break."""
    monkeypatch.setattr(replica_module, "HEALTH_EVERY_S", 0.01)
    machines = Machines()
    async with opened(tmp_path, machines) as replicas, anyio.create_task_group() as tasks:
        first = machines.engines[0]
        first.client.is_broken = True

        async def decide() -> None:
            await anyio.sleep(1)  # more than all attempts of a request take
            first.client.is_broken = not returns
            if not returns:
                await first.kill()

        tasks.start_soon(decide)
        with anyio.fail_after(5):
            answers = await replicas.generate(
                Prompt(ids=(1,)), n=1, max_tokens=1, temperature=1.0, seed=0
            )
        assert len(answers) == 1
        assert len(machines.engines) == 2 - returns
        assert first.client.num_asked == 1 + returns
