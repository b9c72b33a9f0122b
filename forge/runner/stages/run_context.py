"""One running experiment: built once by `run.py`, passed to everything that works for the run."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forge.data.problems import in_split
from forge.records import Event, Split
from forge.rollout.play import Rules
from forge.rollout.ports import Ports
from forge.serve.remote import RefusedRequest
from forge.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
    from pathlib import Path

    from forge.cluster.cluster import Cluster
    from forge.config.schema import Experiment
    from forge.data.prompts.prompt_set import PromptSet
    from forge.evalpool.pool import Pool
    from forge.process.control import Role
    from forge.records import Completion, Problem, Prompt
    from forge.rollout.ports import Generate, Scorer
    from forge.rollout.prompter import TemplatePrompter
    from forge.runner.live.progress import Console, Progress
    from forge.runner.live.stopping import StopRequest, StoreObserver
    from forge.runner.plan.placement import Placement
    from forge.runner.stages.desk import TrainerDesk
    from forge.runner.weights.sync import WeightSync
    from forge.serve.remote import Remote
    from forge.serve.replicas import Replicas
    from forge.store.layout import RunPaths
    from forge.store.write.writer import Writer


@dataclass(slots=True, kw_only=True, eq=False)
class RunContext:
    experiment: Experiment
    paths: RunPaths
    attempt: int
    placement: Placement
    writer: Writer
    observer: StoreObserver
    progress: Progress
    console: Console
    stop: StopRequest

    socket_dir: Path = field(init=False, repr=False)
    """Set by `run.py` before the work begins."""
    problems: Sequence[Problem] = field(init=False, repr=False)
    """Set by `work.py` before anything is prepared."""
    prompts: PromptSet = field(init=False, repr=False)
    """Set by `prepare_run` before anything is made of them."""

    weights: WeightSync = field(init=False, repr=False)
    """Set by `work.py`, like the next three fields, before the first stage."""
    prompter: TemplatePrompter = field(init=False, repr=False)
    group_ids: Iterator[int] = field(init=False, repr=False)
    sample_ids: Iterator[int] = field(init=False, repr=False)
    refused: frozenset[str] = frozenset()

    cluster: Cluster | None = None
    """Set while processes may run on other machines."""
    pool: Pool | None = None
    scorer: Scorer | None = None
    """Set while stages are played, with `reward.function`."""
    replicas: Replicas | Remote | None = None
    desk: TrainerDesk | None = None
    """Desk of the current stage's trainer; None outside training stages."""
    ending: Sequence[Role] = ()
    """Roles whose processes are being closed and will not be restarted."""

    @property
    def log_dir(self) -> Path:
        return self.paths.logs(self.attempt)

    @property
    def control_socket(self) -> Path:
        return self.socket_dir / "control.sock"

    async def record(self, kind: str, message: str, *, says: bool = False, **data: Any) -> None:
        """Store an event; `says` shows its message on the console, too."""
        if says:
            self.console.say(message)
        await self.writer.put(Event(at=time.time(), kind=kind, message=message, data=data))

    @contextmanager
    def training(self, desk: TrainerDesk) -> Generator[None]:
        """The control socket serves this desk while inside."""
        self.desk = desk
        try:
            yield
        finally:
            desk.stop()  # wakes a pending take, which would delay closing the socket
            self.desk = None

    def problems_of(self, split: Split) -> list[Problem]:
        refused = self.refused if split is Split.GRPO else ()
        return [each for each in in_split(self.problems, split) if each.problem_id not in refused]

    async def generate(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        """The Generate port for training: a publish waits for the end of the turn, and a turn for
        the end of the publish."""
        assert self.replicas is not None
        async with self.weights.gate.turn():
            return await self.replicas.generate(
                prompt, n=n, max_tokens=max_tokens, temperature=temperature, seed=seed
            )

    def ports(self, generate: Generate | None = None) -> Ports:
        """Ports of the rollout loop; those of training unless `generate` is given."""
        assert self.pool is not None
        pool, rollout = self.pool, self.experiment.rollout
        tools = Toolbox(
            ask=pool.judge, max_calls=rollout.tool_calls, has_times=lambda: pool.is_timed
        )
        return Ports(
            generate=generate or self.generate,
            judge=partial(pool.judge, program=True),
            sink=self.writer,
            prompter=self.prompter,
            tools=tools if rollout.tools else None,
            scorer=self.scorer,
            refused=(RefusedRequest,),
        )

    @asynccontextmanager
    async def pinned_ports(self) -> AsyncGenerator[Ports]:
        """Ports for an evaluation: the weights do not change while inside. Publishes wait for as
        long as completions arrive."""
        assert self.replicas is not None
        replicas, gate = self.replicas, self.weights.gate

        async def generate(prompt: Prompt, **options: Any) -> list[Completion]:
            answers = await replicas.generate(prompt, **options)
            await gate.report_progress()
            return answers

        async with gate.pinned():
            yield self.ports(generate)

    def rules(
        self, *, group_size: int, max_turns: int, temperature: float, seed: int | None = None
    ) -> Rules:
        rollout = self.experiment.rollout
        return Rules(
            group_size=group_size, max_turns=max_turns, temperature=temperature,
            gamma=rollout.gamma, credit=rollout.credit, advantage=rollout.advantage,
            max_completion_tokens=rollout.max_completion_tokens, reward=self.experiment.reward,
            seed=self.experiment.seed if seed is None else seed,
        )  # fmt: skip

    def busy(self) -> dict[str, float]:
        """Busy seconds so far by role, averaged over the role's processes; a role without
        processes is absent. A replica or judge is busy while it has a request; a trainer is busy
        since its stage began, except while it waits."""
        found: dict[str, float] = {}
        if self.desk is not None:
            now = time.monotonic()
            found["trainer"] = now - self.progress.stage_started_at - self.desk.idle_s(now)
        if self.replicas is not None:
            stats = self.replicas.stats()
            found["serve"] = stats.busy_s / stats.num_replicas
        if self.pool is not None:
            busy = self.pool.stats().busy_s.values()
            found["judge"] = sum(busy) / max(len(busy), 1)
        return found
