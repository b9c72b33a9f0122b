# pyright: strict
"""The supervisor's side of one replica: keeps the engine's child alive with the current weights;
and the client of an engine: token ids in, completions out, over its Unix socket or a URL.

Promises: a restarted child has the current weights before it answers a request; a child that dies
asleep is restarted at `wake` only, since others use its GPU until then; a child whose /health is
silent for `HUNG_S` is killed and restarted; the first start is not repeated, since its failure has
a lasting cause.

    start ─▶ push weights ─▶ up ──died──▶ back-off ─▶ start ...   too many deaths: ChildDied
              up ──draining──▶ idle ─▶ push weights, or asleep ─▶ up

Every call of the client has a deadline and ends with an answer or with an error that names the
engine (ChildDied: it hung up; Stalled: it was silent; ConfigError: it refused; MachineError: it
failed).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.abc
import numpy as np

from forge.errors import ChildDied, ConfigError, MachineError, NoRoom, Stalled
from forge.process.ask import error_message, open_client, open_url_client, parse_content, send
from forge.process.busy import BusyClock
from forge.process.child import Child, ChildSpec, ProcessObserver, open_child
from forge.process.shared_weights import is_shared
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish
from forge.serve.served import SampleRequest
from forge.serve.weights import Weights
from forge.serve.wire import COMPACT, MAGIC, unpack

logger = logging.getLogger(__name__)

DRAIN_PAUSE_S = 0.02
"""Pause between two checks for the end of the last request."""
RETRY_PAUSE_S = 0.1
"""Pause between a hang-up and the next check for a restarted child."""
NO_ROOM_PAUSE_S = 5.0
"""Pause before another attempt to find a machine with room."""
HEALTH_EVERY_S = 0.5
HUNG_S = 60.0
"""Maximum silence of /health. Longer than a full garbage collection or the load of a large
checkpoint blocks the child's event loop."""

T = TypeVar("T")

ACCEPT = {"Accept": COMPACT}
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Errors of reading an answer of another shape."""
SHORT_TIMEOUT_S = 10.0
"""Maximum wait for /health."""


class ReplicaClient:
    """A client of one engine. Call `aclose` when done, or use it in `async with`."""

    def __init__(
        self, address: Path | str, *, name: str = "", timeout_s: float = 300.0,
        token: str | None = None,
    ) -> None:  # fmt: skip
        """`address`: path of the engine's socket, or a URL, which asks for `token`."""
        self.timeout_s = timeout_s
        if isinstance(address, str):
            self.name = name or address
            self._http = open_url_client(address, timeout_s=timeout_s, token=token)
        else:
            self.name = name or address.stem
            self._http = open_client(address, timeout_s=timeout_s)

    async def __aenter__(self) -> ReplicaClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(SHORT_TIMEOUT_S):
            await self._http.aclose()

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, max_tokens: int, temperature: float = 1.0,
        seed: int = 0, stop_token_ids: Sequence[int] = (),
    ) -> list[Completion]:  # fmt: skip
        """Sample `n` continuations of a prompt, in the order of their index."""
        settings = {"n": n, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        body = {"prompt": list(prompt_ids), "stop_token_ids": list(stop_token_ids), **settings}
        return await self._ask("/v1/completions", body, parse=_completions, headers=ACCEPT)

    async def load_weights(self, path: Path, *, version: int) -> float:
        """Serve the weights of a directory as `version`. Returns the engine's seconds for it."""
        body = {"path": str(path.absolute()), "version": version}
        found, seconds = await self._ask("/weights", body, parse=_acknowledged)
        if found != version:
            raise MachineError(f"{self.name} acknowledged version {found}; requested was {version}")
        return seconds

    async def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        """Log probability of each completion token at temperature 1, teacher forced."""
        body = {"prompt_ids": list(prompt_ids), "completion_ids": list(completion_ids)}
        return await self._ask("/score", body, parse=_logprobs)

    async def health(self) -> dict[str, Any]:
        answer = await send(
            self._http, "GET", "/health", server=self.name, timeout_s=SHORT_TIMEOUT_S
        )
        try:
            found = dict(answer.json())
            return {**found, "features": list(found["features"])}
        except MALFORMED as error:
            raise _unreadable(self.name, error) from error

    async def sleep(self) -> None:
        """Release the engine's GPU memory. It answers nothing until `wake`."""
        await self._ask("/sleep", {})

    async def wake(self) -> None:
        await self._ask("/wake", {})

    async def _ask(
        self, path: str, body: Mapping[str, Any], *, parse: Callable[[bytes], T] = parse_json,
        headers: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        response = await send(
            self._http, "POST", path, body,
            server=self.name, timeout_s=self.timeout_s, headers=headers,
        )  # fmt: skip
        if response.status != 200:
            kind = ConfigError if 400 <= response.status < 500 else MachineError
            raise kind(f"{self.name}: {error_message(response.content)}")
        try:
            return await parse_content(response.content, parse)
        except MALFORMED as error:
            raise _unreadable(self.name, error) from error


def _unreadable(name: str, error: Exception) -> MachineError:
    return MachineError(f"{name}: its answer is not an engine's: {error!r}"[:300])


def _acknowledged(content: bytes) -> tuple[int, float]:
    found = parse_json(content)
    return int(found["version"]), float(found["seconds"])


def _logprobs(content: bytes) -> list[float]:
    return [float(each) for each in parse_json(content)["logprobs"]]


def _completions(content: bytes) -> list[Completion]:
    if content.startswith(MAGIC):
        return unpack(content)
    return [_completion(choice) for choice in parse_json(content)["choices"]]


def _completion(choice: Mapping[str, Any]) -> Completion:
    return Completion(
        token_ids=tuple(choice["token_ids"]),
        # In the precision of the store and of `wire`.
        logprobs=tuple(np.asarray(choice["logprobs"]["token_logprobs"], np.float32).tolist()),
        finish=Finish(choice["finish_reason"]),
        min_version=choice["min_version"],
        max_version=choice["max_version"],
    )


@dataclass(slots=True, kw_only=True)
class Restarts:
    """Back-off of restarts: the delay doubles with each death in the window. No clock inside."""

    limit: int = 5
    window_s: float = 600.0
    first_delay_s: float = 0.2
    longest_delay_s: float = 10.0
    _deaths: deque[float] = field(default_factory=deque[float])

    def after_death(self, now: float) -> float | None:
        """Seconds to wait before the next start; None if the child died too often."""
        while self._deaths and now - self._deaths[0] > self.window_s:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self.limit:
            return None
        return min(self.first_delay_s * 2 ** (len(self._deaths) - 1), self.longest_delay_s)


class EngineElsewhere(Protocol):
    """A started engine on another machine, with the methods of `Child` that a replica needs."""

    @property
    def client(self) -> ReplicaClient:
        """Its client, closed with the engine."""
        ...

    @property
    def is_alive(self) -> bool: ...

    async def wait(self) -> str: ...

    async def kill(self) -> None: ...

    def dump_stacks(self) -> None: ...

    def died(self, *, doing: str = "") -> ChildDied: ...

    async def bring(self, path: Path) -> Path:
        """Copy a directory of weights to its machine; returns the path there. Raises ChildDied,
        MachineError."""
        ...


OpenEngineElsewhere = Callable[[ChildSpec], AbstractAsyncContextManager[EngineElsewhere]]
"""Starts the engine of a spec on another machine. Raises NoRoom while none has room."""


class Replica:
    """An engine's child, its client and its counters."""

    def __init__(
        self, spec: ChildSpec, *, weights: Weights, request_timeout_s: float,
        observer: ProcessObserver | None, on_up: Callable[[], None],
        on_death: Callable[[str], None], elsewhere: OpenEngineElsewhere | None = None,
    ) -> None:  # fmt: skip
        """`on_up` is called when the replica accepts requests, `on_death` with its name.
        `elsewhere` starts the engine on another machine."""
        assert spec.socket_path is not None
        self.name = spec.name
        self.socket_path = spec.socket_path
        self.wanted = weights
        self.health: dict[str, Any] = {}
        """Last answer of /health; empty while the child is not up."""
        self.features: frozenset[str] = frozenset()
        """The engine's features, as of its first /health; kept during restarts."""
        self.generated_tokens = 0
        self.num_deaths = 0
        self.load = 0
        """Samples requested and not yet answered."""
        self._spec, self._observer, self._elsewhere = spec, observer, elsewhere
        self._on_up, self._on_death = on_up, on_death
        self._restarts = Restarts()
        self._client = ReplicaClient(spec.socket_path, name=spec.name, timeout_s=request_timeout_s)
        self._child: Child | EngineElsewhere | None = None
        self.is_absent = False
        """True while no other machine has room for it: publishes do not wait for it."""
        self.is_unreached = False
        """True from a broken connection to another machine until it answers: the loss of a machine
        is known later than that of a child here."""
        self._served: Weights | None = None
        """None also while the loaded weights of a running child are unknown."""
        self._pushing = anyio.Lock()
        self.busy = BusyClock()
        self._is_asleep = False
        self._is_awake = anyio.Event()
        self._has_process = False
        self.is_draining = False

    @property
    def is_up(self) -> bool:
        """True if it is awake, serves the wanted weights and is not draining."""
        is_open = self._serves_wanted and not self.is_unreached
        return is_open and not self.is_draining and not self._is_asleep

    @property
    def _serves_wanted(self) -> bool:
        return self._served == self.wanted and self._child is not None and self._child.is_alive

    # -- life ------------------------------------------------------------------------------------

    async def keep(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the child up until cancelled. Raises ChildDied or Stalled when it cannot be."""
        try:
            await self._live(task_status)
            while True:
                await self._live(anyio.TASK_STATUS_IGNORED)
        finally:
            await self._client.aclose()

    async def _live(self, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Run the child until its death, and wait out the back-off."""
        was_up = False
        if self._is_asleep:
            await self._is_awake.wait()
        self._has_process = True
        try:
            # On the weights wanted now: the first checkpoint may be deleted by then.
            base = self.wanted.base
            if is_shared(base.full):
                raise MachineError(
                    f"{self.name} ended, and the weights of version {base.version} are no files "
                    '(serve.weights = "ipc"); "forge resume" continues from the last checkpoint'
                )
            model = {"model_dir": str(base.full.absolute()), "version": base.version}
            spec = replace(self._spec, config={**self._spec.config, **model})
            async with self._open(spec) as child:
                self._child, self._served = child, base
                await self._push()
                self.health = await self._client.health()
                self.features = frozenset(self.health["features"])
                was_up = True
                task_status.started()
                self._on_up()
                await child.wait()
                raise child.died(doing="serving")
        except ChildDied as death:
            self._child = self._served = None
            self._has_process, self.health = False, {}
            self._on_death(self.name)
            if not was_up and self.num_deaths == 0:
                raise
            await self._pause(death)
        except NoRoom as error:
            self._has_process = False
            if self.num_deaths == 0:
                raise
            self.is_absent = True
            logger.warning("%s waits for a machine: %s", self.name, error)
            await anyio.sleep(NO_ROOM_PAUSE_S)

    @asynccontextmanager
    async def _open(self, spec: ChildSpec) -> AsyncGenerator[Child | EngineElsewhere]:
        if self._elsewhere is None:
            async with open_child(spec, observer=self._observer) as child:
                yield child
            return
        async with self._elsewhere(spec) as engine:
            self.is_absent, self.is_unreached, self._client = False, False, engine.client
            yield engine

    async def _pause(self, death: ChildDied) -> None:
        self.num_deaths += 1
        delay_s = self._restarts.after_death(time.monotonic())
        if delay_s is None:
            raise ChildDied(
                f"{self.name} died more than {self._restarts.limit} times in"
                f" {self._restarts.window_s / 60:.0f} min. The last time: {death}"
            ) from death
        logger.warning("%s; restarting it in %.1f s", death, delay_s)
        await anyio.sleep(delay_s)

    async def watch(self) -> None:
        """Keep `health` fresh; kill a child that hangs or lost its socket. Run it beside `keep`."""
        answered_at = time.monotonic()
        while True:
            await anyio.sleep(HEALTH_EVERY_S)
            child = self._child
            if child is None or not self.health:
                answered_at = time.monotonic()
                continue
            # Open connections work on, new ones fail.
            if self._elsewhere is None and not self.socket_path.exists():
                logger.error("%s: %s was removed; it is restarted", self.name, self.socket_path)
                await child.kill()
                continue
            try:
                self.health = await self._client.health()
                answered_at = time.monotonic()
                if self.is_unreached:
                    self.is_unreached = False
                    self._on_up()
            except ChildDied:
                continue
            except (Stalled, MachineError):
                if child is not self._child or time.monotonic() - answered_at < HUNG_S:
                    continue
                child.dump_stacks()
                logger.error(
                    "%s hangs: no /health for %.0f s; it is killed. Its stacks are in %s",
                    self.name, HUNG_S, self._spec.log_path,
                )  # fmt: skip
                await anyio.sleep(RETRY_PAUSE_S)  # until the stacks are written
                await child.kill()

    # -- sleep -----------------------------------------------------------------------------------

    async def drain(self, *, timeout_s: float) -> None:
        """Return once all requests are answered. New ones are routed elsewhere until `is_draining`
        is False again. Raises Stalled."""
        self.is_draining = True
        with anyio.move_on_after(timeout_s):
            while self.load:  # noqa: ASYNC110 - a counter that many requests change
                await anyio.sleep(DRAIN_PAUSE_S)
            return
        raise Stalled(f"{self.name} did not answer {self.load} samples within {timeout_s:.0f} s")

    async def sleep(self, *, timeout_s: float) -> None:
        """Answer pending requests, then release GPU memory. Raises Stalled."""
        try:
            await self.drain(timeout_s=timeout_s)
            if not self._is_asleep:
                self._is_asleep, self._is_awake = True, anyio.Event()
            with anyio.move_on_after(timeout_s):
                return await self._release_memory()
            raise self._silent(timeout_s, "to sleep")
        finally:
            self.is_draining = False

    async def _release_memory(self) -> None:
        """Wait for a child that is starting, since it holds memory already; a dead one has none."""
        while self._has_process:
            if self._serves_wanted:
                try:
                    return await self._client.sleep()
                except ChildDied as error:
                    logger.warning("%s; it is started again at wake", error)
            await anyio.sleep(RETRY_PAUSE_S)

    async def wake(self) -> None:
        if not self._is_asleep:
            return
        self._is_asleep = False
        self._is_awake.set()
        try:
            if self._child is not None:
                await self._client.wake()
        except ChildDied as error:
            logger.warning("%s; it is awake after its restart", error)
        if self.is_up:
            self._on_up()

    # -- weights ---------------------------------------------------------------------------------

    async def serve(self, weights: Weights, *, timeout_s: float) -> None:
        """Return once the child serves these weights, through restarts. Raises ConfigError if it
        refuses them, Stalled if it is silent."""
        self.wanted = weights
        with anyio.move_on_after(timeout_s):
            while not self._serves_wanted and not self.is_absent:
                if self._child is not None and self._child.is_alive:
                    try:
                        await self._push()
                        continue
                    except ChildDied as error:
                        logger.warning("%s; waiting for its restart", error)
                await anyio.sleep(RETRY_PAUSE_S)
            return
        raise self._silent(timeout_s, f"serving version {weights.version}")

    def doubt(self) -> None:
        """Distrust what the child acknowledged: the next `serve` loads everything again."""
        self._served = None

    async def _push(self) -> None:
        """Load the wanted weights, and again if `wanted` changes meanwhile."""
        async with self._pushing:
            while (wanted := self.wanted) != (served := self._served):
                for path in wanted.paths_from(served):
                    self._served = None  # a failed load may be half done
                    try:
                        near = await self._bring(path)
                        seconds = await self._client.load_weights(near, version=wanted.version)
                    except ConfigError:
                        self._served = served  # refused: the old weights are still served
                        raise
                    served = None  # the old weights are gone, even if an adapter is still to load
                    logger.info("%s serves version %d (%.3f s)", self.name, wanted.version, seconds)
                self._served = wanted
        self._on_up()

    async def _bring(self, path: Path) -> Path:
        if self._elsewhere is None:
            return path
        child = self._child
        if child is None or isinstance(child, Child):
            raise ChildDied(f"{self.name} ended before it got {path}")
        return await child.bring(path)

    # -- requests --------------------------------------------------------------------------------

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. The caller counts `load` and the tokens of the answers it uses."""
        try:
            with self.busy.running():
                return await self._client.complete(
                    request.prompt.ids, n=request.n, max_tokens=request.max_tokens,
                    temperature=request.temperature, seed=request.seed,
                    stop_token_ids=request.stop_token_ids,
                )  # fmt: skip
        except ChildDied:
            self.is_unreached = self._elsewhere is not None
            raise
        except Stalled as error:
            if self._child is None:
                raise
            self._child.dump_stacks()
            raise Stalled(f"{error}. Its stacks are in {self._spec.log_path}") from error

    async def scores(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, timeout_s: float
    ) -> list[list[float]]:
        """Log probabilities under the wanted weights, through restarts: one list, of one engine;
        none while it has no machine. Raises Stalled."""
        with anyio.move_on_after(timeout_s):
            while not self.is_absent:
                if self._serves_wanted:
                    try:
                        return [await self._client.score(prompt_ids, completion_ids)]
                    except ChildDied as error:
                        logger.warning("%s; waiting for its restart", error)
                await anyio.sleep(RETRY_PAUSE_S)
            return []
        raise self._silent(timeout_s, "a score")

    def _silent(self, timeout_s: float, asked: str) -> Stalled:
        return Stalled(f"{self.name} was silent for {timeout_s:.0f} s; asked: {asked}")
