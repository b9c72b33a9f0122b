"""One replica as the supervisor sees it: a child that is kept alive, with the weights it must
serve.

Owned by `replicas`. Promises: a restarted child has the current weights before it answers anything;
one that dies asleep stays away until `wake`, since its card is another's; one whose /health is
silent for `HUNG_S` is killed and so restarted; the first start is not retried, since it fails for a
reason.

    start ─▶ push weights ─▶ up ──died──▶ back-off ─▶ start ...   too many deaths: ChildDied
              up ──draining──▶ idle ─▶ push weights, or asleep ─▶ up
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.errors import ChildDied, ConfigError, Stalled
from forge.process.busy import BusyClock
from forge.process.child import Child, ChildSpec, ProcessObserver, open_child
from forge.serve.client import ReplicaClient
from forge.serve.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.records import Completion
    from forge.serve.weights import Weights

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.1
"""Between a hang-up and the next look whether the child is up again."""
DRAIN_PAUSE_S = 0.02
"""Between two looks whether the last request has ended."""
HEALTH_EVERY_S = 0.5
HUNG_S = 60.0
"""Without a /health, whose loop has little else to do: longer than a full collection or the load of
a large checkpoint holds it."""


class Replica:
    """A child, its client and its counters."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        weights: Weights,
        request_timeout_s: float,
        observer: ProcessObserver | None,
        on_up: Callable[[], None],
        on_death: Callable[[str], None],
    ) -> None:
        """`on_death` hears the name."""
        assert spec.socket_path is not None
        self.name = spec.name
        self.socket_path = spec.socket_path
        self.wanted = weights
        self.health: dict[str, Any] = {}
        """What /health said last; empty where the child is not up."""
        self.features: frozenset[str] = frozenset()
        """What the engine can do, from its first /health on: also while it is being restarted."""
        self.generated_tokens = 0
        self.num_deaths = 0
        self.load = 0
        """Samples asked and not yet answered."""
        self._spec = spec
        self._observer = observer
        self._on_up = on_up
        self._on_death = on_death
        self._restarts = Restarts()
        self._client = ReplicaClient(spec.socket_path, name=spec.name, timeout_s=request_timeout_s)
        self._child: Child | None = None
        self._served: Weights | None = None
        """None also where a child is up, but nobody knows what it has loaded."""
        self._pushing = anyio.Lock()
        self._busy = BusyClock()
        self._is_asleep = False
        self._is_awake = anyio.Event()
        self._has_process = False
        self._is_draining = False

    @property
    def is_up(self) -> bool:
        """Awake, and serving what is wanted."""
        return self._serves_wanted and not self._is_draining and not self._is_asleep

    @property
    def _serves_wanted(self) -> bool:
        return self._served == self.wanted and self._child is not None and self._child.is_alive

    @property
    def busy_s(self) -> float:
        return self._busy.busy_s

    # -- life ------------------------------------------------------------------------------------

    async def keep(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the child up until cancelled. Raises ChildDied or Stalled where that is not
        possible.
        """
        try:
            await self._live(task_status)
            while True:
                await self._live(anyio.TASK_STATUS_IGNORED)
        finally:
            await self._client.aclose()

    async def _live(self, task_status: anyio.abc.TaskStatus[None]) -> None:
        """One life of the child: up to its death, and the pause after it."""
        was_up = False
        if self._is_asleep:
            await self._is_awake.wait()
        self._has_process = True
        try:
            base = self.wanted.base
            async with open_child(self._spec_on(base), observer=self._observer) as child:
                self._child, self._served = child, base
                await self._push()
                self._note(await self._client.health())
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

    def _note(self, health: dict[str, Any]) -> None:
        self.health, self.features = health, frozenset(health["features"])

    def _spec_on(self, base: Weights) -> ChildSpec:
        """The child starts on what is wanted now: what was wanted first may be gone by then."""
        config = {"model_dir": str(base.full.absolute()), "version": base.version}
        return replace(self._spec, config={**self._spec.config, **config})

    async def _pause(self, death: ChildDied) -> None:
        self.num_deaths += 1
        delay_s = self._restarts.after_death(time.monotonic())
        if delay_s is None:
            raise ChildDied(
                f"{self.name} died more than {self._restarts.limit} times in"
                f" {self._restarts.window_s / 60:.0f} min. The last time: {death}"
            ) from death
        logger.warning("%s; starting it again in %.1f s", death, delay_s)
        await anyio.sleep(delay_s)

    async def watch(self) -> None:
        """Beside `keep`: keep `health` fresh, and kill a child that hangs: only a restart helps."""
        heard = time.monotonic()
        while True:
            await anyio.sleep(HEALTH_EVERY_S)
            child = self._child
            if child is None or not self.health:
                heard = time.monotonic()
                continue
            try:
                self.health = await self._client.health()
                heard = time.monotonic()
            except ChildDied:
                continue
            except Stalled:
                if child is self._child and time.monotonic() - heard >= HUNG_S:
                    await self._kill(child)

    async def _kill(self, child: Child) -> None:
        child.dump_stacks()
        logger.error(
            "%s hangs: no /health for %.0f s; it is killed. Its stacks are in %s",
            self.name, HUNG_S, self._spec.log_path,
        )  # fmt: skip
        await anyio.sleep(RETRY_PAUSE_S)  # for the stacks
        await child.kill()

    # -- rest ------------------------------------------------------------------------------------

    async def drain(self, *, timeout_s: float) -> None:
        """Return once it has answered everything; new requests go elsewhere, or wait, until
        `undrain`."""
        self._is_draining = True
        with anyio.move_on_after(timeout_s):
            while self.load:  # noqa: ASYNC110 - a counter that many requests change
                await anyio.sleep(DRAIN_PAUSE_S)
            return
        raise Stalled(f"{self.name} did not answer {self.load} samples within {timeout_s:.0f} s")

    def undrain(self) -> None:
        """It may be asked again."""
        self._is_draining = False
        if self.is_up:
            self._on_up()

    async def sleep(self, *, timeout_s: float) -> None:
        """Answer what was asked, then give GPU memory away. Returns once it has."""
        try:
            await self.drain(timeout_s=timeout_s)
            if not self._is_asleep:
                self._is_asleep, self._is_awake = True, anyio.Event()
            with anyio.move_on_after(timeout_s):
                return await self._give_memory_away()
            raise Stalled(f"{self.name} was silent for {timeout_s:.0f} s; asked: to sleep")
        finally:
            self._is_draining = False

    async def _give_memory_away(self) -> None:
        """One that is being started has taken some, and is waited for; a dead one has none."""
        while self._has_process:
            if self._serves_wanted:
                try:
                    return await self._client.sleep()
                except ChildDied as error:
                    logger.warning("%s; it is started again when it is to wake", error)
            await anyio.sleep(RETRY_PAUSE_S)

    async def wake(self) -> None:
        """Take GPU memory back."""
        if not self._is_asleep:
            return
        self._is_asleep = False
        self._is_awake.set()
        try:
            if self._child is not None:
                await self._client.wake()
        except ChildDied as error:
            logger.warning("%s; it is awake once it is back", error)
        if self.is_up:
            self._on_up()

    # -- weights ---------------------------------------------------------------------------------

    async def serve(self, weights: Weights, *, timeout_s: float) -> None:
        """Return once the child serves these weights, through restarts. Raises ConfigError where it
        refuses them.
        """
        self.wanted = weights
        asked = f"serving version {weights.version}"
        with anyio.move_on_after(timeout_s):
            while not self._serves_wanted:
                if self._child is not None and self._child.is_alive:
                    try:
                        await self._push()
                        continue
                    except ChildDied as error:
                        logger.warning("%s; waiting for its restart", error)
                await anyio.sleep(RETRY_PAUSE_S)
            return
        raise Stalled(f"{self.name} was silent for {timeout_s:.0f} s; asked: {asked}")

    def doubt(self) -> None:
        """What it serves is not what it acknowledged: the next `serve` loads all of it."""
        self._served = None

    async def _push(self) -> None:
        """Load what is wanted. `wanted` may change meanwhile: then again."""
        async with self._pushing:
            while (wanted := self.wanted) != (served := self._served):
                for path in wanted.paths_from(served):
                    self._served = None  # a load that fails may have got half-way
                    try:
                        seconds = await self._client.load_weights(path, version=wanted.version)
                    except ConfigError:
                        self._served = served  # refused: it serves what it did
                        raise
                    served = None  # gone, also where an adapter is still to come
                    logger.info("%s serves version %d (%.3f s)", self.name, wanted.version, seconds)
                self._served = wanted
        self._on_up()

    # -- requests --------------------------------------------------------------------------------

    async def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_token_ids: Sequence[int],
    ) -> list[Completion]:
        """Sample. Who asks counts `load`, and the tokens of answers that are used."""
        try:
            with self._busy.running():
                return await self._client.complete(
                    prompt_ids,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed,
                    stop_token_ids=stop_token_ids,
                )
        except Stalled as error:
            raise self._silent(error) from error

    async def score(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, timeout_s: float
    ) -> list[float]:
        """Log probabilities under what is wanted, through restarts."""
        with anyio.move_on_after(timeout_s):
            while True:
                if self._serves_wanted:
                    try:
                        return await self._client.score(prompt_ids, completion_ids)
                    except ChildDied as error:
                        logger.warning("%s; waiting for its restart", error)
                await anyio.sleep(RETRY_PAUSE_S)
        raise Stalled(f"{self.name} was silent for {timeout_s:.0f} s; asked: a score")

    def _silent(self, error: Stalled) -> Stalled:
        """The stacks of the silent child go to its log, for whoever reads the error."""
        if self._child is None:
            return error
        self._child.dump_stacks()
        return Stalled(f"{error}. Its stacks are in {self._spec.log_path}")
