"""A made-up Ray: actors are objects of this process, placed on nodes with labels and CPU cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
from anyio.abc import TaskGroup


class FakeRayError(Exception):
    """Base of Ray's errors."""


class FakeActorDiedError(FakeRayError):
    """An actor is gone."""


class FakeUnavailableError(FakeRayError):
    """An actor does not answer and may come back."""


@dataclass(eq=False)
class FakeNode:
    """A node with room for `cpus` actors."""

    name: str
    cpus: int
    labels: dict[str, str]
    is_alive: bool = True
    actors: list[FakeActor] = field(default_factory=list)


class FakeCall:
    """A call that runs by itself, and may be awaited."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._value: Any = None
        self._error: Exception | None = None

    async def run(self, call: Any, *args: Any) -> None:
        try:
            self._value = await call(*args)
        except Exception as error:
            self._error = error
        self._done.set()

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class FakeActor:
    """A handle: its methods wait until a node has room, and fail once the node is lost."""

    def __init__(self, ray: FakeRay, make: Callable[[], Any], num_cpus: int, labels: dict) -> None:
        self._ray, self._make, self.num_cpus, self.labels = ray, make, num_cpus, labels
        self.made: Any = None
        self.node: FakeNode | None = None
        self.is_killed = False

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> FakeCall:
            call = FakeCall()
            self._ray.tasks.start_soon(call.run, self._call, name, args)
            return call

        return SimpleNamespace(remote=remote)

    async def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        while self.node is None:
            self._require_life()
            self.node = self._ray.place(self)
            await anyio.sleep(0.01)
        if self.made is None:
            self.made = self._make()
        self._require_life()
        if self._ray.unavailable and name == "news":
            raise self._ray.unavailable.pop()
        answer = await getattr(self.made, name)(*args)
        self._require_life()
        return answer

    def _require_life(self) -> None:
        if self.is_killed or (self.node is not None and not self.node.is_alive):
            raise FakeActorDiedError("the actor died.\nits node was lost")


class FakeRay:
    """The functions of the package that the broker uses. Nodes are added by the test."""

    exceptions = SimpleNamespace(
        RayError=FakeRayError,
        ActorDiedError=FakeActorDiedError,
        ActorUnavailableError=FakeUnavailableError,
    )

    def __init__(self, make_host: Callable[[], Any], tasks: TaskGroup) -> None:
        """`tasks` runs the calls of actors."""
        self._make_host = make_host
        self.tasks = tasks
        self.here = FakeNode("here", 8, {})
        self.joined = [self.here]
        self.unavailable: list[Exception] = []
        """Errors of the next questions for news."""
        self.num_put = 0

    def add(self, name: str, *, cpus: int, **labels: str) -> FakeNode:
        self.joined.append(FakeNode(name, cpus, {"ray.io/node-id": name, **labels}))
        return self.joined[-1]

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node.name, "NodeManagerAddress": "127.0.0.1", "Alive": node.is_alive,
                "Resources": {"CPU": float(node.cpus), "object_store_memory": 8e9},
                "Labels": node.labels,
            }
            for node in self.joined
        ]  # fmt: skip

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, _host: type) -> Any:
        def options(
            *, num_cpus: int, num_gpus: int, label_selector: dict[str, str], max_restarts: int
        ) -> Any:
            assert (num_gpus, max_restarts) == (0, 0)
            make = self._make_host
            return SimpleNamespace(
                remote=lambda is_on_gpu: FakeActor(self, make, num_cpus, label_selector)
            )

        return SimpleNamespace(options=options)

    def place(self, actor: FakeActor) -> FakeNode | None:
        for node in self.joined:
            used = sum(each.num_cpus for each in node.actors if not each.is_killed)
            fits = node.is_alive and node.cpus - used >= actor.num_cpus
            wanted = dict(actor.labels)
            if wanted.get("ray.io/node-id", "").startswith("!"):
                del wanted["ray.io/node-id"]
            if fits and node is not self.here and wanted.items() <= node.labels.items():
                node.actors.append(actor)
                return node
        return None

    def put(self, value: Any) -> Any:
        self.num_put += 1
        return FakeRef(value)

    def kill(self, actor: FakeActor) -> None:
        actor.is_killed = True

    async def stop_all(self) -> None:
        """End the children of all actors, killed ones included: their process is this one."""
        for node in self.joined:
            for actor in node.actors:
                if actor.made is not None:
                    await actor.made.stop()


@dataclass(frozen=True)
class FakeRef:
    """An object in the store."""

    value: Any

    def __await__(self) -> Any:
        async def get() -> Any:
            return self.value

        return get().__await__()
