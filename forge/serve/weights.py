# pyright: strict
"""Weights of a replica, and servers that get new weights together.

`Weights` is passed by the runner from stage to stage. `Publishing` is the base of
`replicas.Replicas` (engines of this run, by directory or through a cluster) and of
`upload.sending.RemoteReplicas` (servers that accept weights over HTTP). Promises: an adapter always
comes with the checkpoint it was trained on; `publish` returns when every server has acknowledged
the version, and changes nothing if one refuses it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import anyio

from forge.errors import ConfigError, ForgeError, MachineError, Stalled
from forge.records import EngineLoad
from forge.serve.port import PREFIX_CACHE
from forge.serve.served import Served, Server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

DRAIN_PAUSE_S = 0.02
"""Pause between two checks for the end of the last request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One policy version, as directories."""

    full: Path
    """Directory of a whole checkpoint."""
    adapter: Path | None = None
    """Directory of a PEFT adapter on it."""
    version: int = 0
    """Policy version of both together."""
    full_version: int = 0
    """Policy version under which `full` was published; path and version identify a checkpoint."""

    def then(self, path: Path, *, version: int) -> Weights:
        """The weights after publishing a directory: a checkpoint, or an adapter on the last one."""
        if (path / "adapter_config.json").exists():
            return replace(self, adapter=path, version=version)
        return Weights(full=path, version=version, full_version=version)

    def to_json(self, record: Callable[[Path], str] = str) -> dict[str, Any]:
        """JSON for an event of the store; `record` gives each path as the store has it."""
        adapter = self.adapter and record(self.adapter)
        return {**asdict(self), "full": record(self.full), "adapter": adapter}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], find: Callable[[str], Path] = Path) -> Weights:
        """Inverse of `to_json`, with `find` the inverse of `record`."""
        adapter = None if data["adapter"] is None else find(data["adapter"])
        versions = {name: data[name] for name in ("version", "full_version")}
        return cls(full=find(data["full"]), adapter=adapter, **versions)

    @property
    def base(self) -> Weights:
        """The checkpoint alone, which an engine starts with."""
        return Weights(full=self.full, version=self.full_version, full_version=self.full_version)

    def paths_from(self, served: Weights | None) -> list[Path]:
        """Directories to load, in order, into an engine that serves `served` (None: unknown)."""
        if self.adapter is None:
            return [self.full]
        is_on_it = served is not None and served.base == self.base
        return [self.adapter] if is_on_it else [self.full, self.adapter]


class WeightServer(Server, Protocol):
    """A server whose weights change: `replica.Replica` or `upload.sending.WeightTaker`."""

    is_draining: bool
    """True while it gets no new requests, so that running ones end."""
    health: dict[str, Any]
    """Last answer of /health; empty while it is not up."""
    features: frozenset[str]
    """The engine's features, as of its first /health."""

    async def wake(self) -> None:
        """Take GPU memory back, where it was released."""
        ...

    async def serve(self, weights: Weights, *, timeout_s: float) -> None:
        """Return once it serves these weights. Raises ConfigError if it refuses them, Stalled."""
        ...

    def doubt(self) -> None:
        """Distrust what it acknowledged: the next `serve` loads everything again."""
        ...

    async def scores(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, timeout_s: float
    ) -> list[list[float]]:
        """Log probabilities of the completion from each of its engines. Raises Stalled."""
        ...


AnyServer = TypeVar("AnyServer", bound=WeightServer)


class Publishing(Served, Generic[AnyServer]):
    """Servers of one model whose weights change together."""

    def __init__(
        self, servers: Sequence[AnyServer], *, weights: Weights, stop_token_ids: Sequence[int],
        slots: int, request_timeout_s: float, through_restart_s: float, wait_s: float,
    ) -> None:  # fmt: skip
        """`through_restart_s`: maximum wait for an answer of a server that has to be started for
        it; the others as in `Served`."""
        super().__init__(servers, stop_token_ids=stop_token_ids, slots=slots, wait_s=wait_s)
        self.all = tuple(servers)
        self._weights = weights
        self._request_timeout_s = request_timeout_s
        self._through_restart_s = through_restart_s
        self._publishing = anyio.Lock()

    @property
    def weights(self) -> Weights:
        """The weights that all servers have, or are getting."""
        return self._weights

    @property
    def version(self) -> int:
        """Policy version that all servers have."""
        return self._weights.version

    @property
    def features(self) -> frozenset[str]:
        """Features that all engines have."""
        return frozenset[str].intersection(*(each.features for each in self.all))

    def load(self) -> EngineLoad | None:
        """Numbers of the engines that are up; None if none is."""
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
        loads weights again that are already served.

        Args:
            rolling: load one server after the other, each when its requests have ended, while the
                others serve the old weights. Otherwise load all at once, during requests.

        Raises:
            ConfigError: a server refused the weights; all serve the old ones again.
            Stalled: a server was silent.
        """
        await self.publish_weights(self._weights.then(path, version=version), rolling=rolling)

    async def publish_weights(self, weights: Weights, *, rolling: bool = False) -> None:
        """`publish` for weights whose checkpoint may be another one too."""
        async with self._publishing:
            await self.for_each(lambda each: each.wake())
            before = self._weights
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
        """Log probabilities of the completion's tokens from each engine."""
        answers: dict[str, list[list[float]]] = {}

        async def ask(server: AnyServer) -> None:
            answers[server.name] = await server.scores(
                prompt_ids, completion_ids, timeout_s=self._through_restart_s
            )

        await self.for_each(ask)
        return [answer for server in self.all for answer in answers[server.name]]

    async def sleep(self) -> None:
        """Nothing: the memory of these engines is not shared."""

    async def wake(self) -> None:
        """Take GPU memory back and continue with requests."""
        await self.for_each(lambda each: each.wake())
        self.release()

    async def _serve_everywhere(self, weights: Weights, *, rolling: bool) -> None:
        self._weights = weights

        async def ask(server: AnyServer) -> None:
            await server.serve(weights, timeout_s=self._through_restart_s)
            self.router.forget(server.name)

        if not rolling:
            return await self.for_each(ask)
        for server in self.all:
            try:
                await drain(server, timeout_s=self._request_timeout_s)
                await ask(server)
            finally:
                self._undrain(server)

    def _undrain(self, server: AnyServer) -> None:
        """Let a server accept requests again."""
        server.is_draining = False
        if server.is_up:
            self.note_up()

    async def for_each(self, ask: Callable[[AnyServer], Awaitable[None]]) -> None:
        """Call `ask` for all at once. Raises the first ForgeError, without an exception group."""
        failures: list[ForgeError] = []

        async def one(server: AnyServer) -> None:
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
        """Wake requests that wait for a server. Call it when one is up (again)."""
        self.router.has_prefix_cache = PREFIX_CACHE in self.features
        super().note_up()


async def drain(server: WeightServer, *, timeout_s: float) -> None:
    """Return once all requests are answered. New ones are routed elsewhere until `is_draining` is
    False again. Raises Stalled."""
    server.is_draining = True
    with anyio.move_on_after(timeout_s):
        while server.load:  # noqa: ASYNC110 - a counter that many requests change
            await anyio.sleep(DRAIN_PAUSE_S)
        return
    raise Stalled(f"{server.name} did not answer {server.load} samples within {timeout_s:.0f} s")
