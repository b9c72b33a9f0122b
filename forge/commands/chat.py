"""`forge chat RUN[@step]`: asks a run's model for a kernel, judges every turn and stores it.

The same loop as in training plays one rollout; only its Generate port differs, which streams the
text. The run is only read, also while it trains: a chat has a store of its own, the run directory
`<store>/chats/<run>-<n>/`, whose event names the run and the policy version that answered. Any
number of chats may go on at once, and every command that reads a run reads them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.commands.serve import place_on, small
from forge.config.load import load_experiment
from forge.data.chat import ChatTemplate
from forge.data.problems import from_source
from forge.errors import ConfigError
from forge.evalpool.pool import open_pool
from forge.exits import INTERRUPTED, Ending, ending_of, iter_leaves
from forge.process.gpu_locks import claim
from forge.process.sockets import open_socket_dir
from forge.records import (
    AttemptEnd,
    Completion,
    Event,
    Problem,
    Prompt,
    Purpose,
    Trajectory,
    Turn,
    split_step,
)
from forge.rollout.play import GroupPlace, Rules, play_group
from forge.rollout.ports import Ports
from forge.rollout.prompter import TemplatePrompter
from forge.rollout.rewards.scorer import open_own_scorer
from forge.runner.attempt import describe_attempt
from forge.runner.plan.machine import this_machine
from forge.runner.plan.shape import lora_rank
from forge.runner.prepare.prompt_facts import prompts_of_run
from forge.runner.weights.resume import find_weights
from forge.serve.client import ReplicaClient
from forge.serve.replicas import open_replicas
from forge.store.layout import RunPaths, create_run, find_run, open_run_lock
from forge.store.write.writer import open_writer

if TYPE_CHECKING:
    from forge.config.schema import Experiment, StoreTable
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.devices import Gpu
    from forge.runner.plan.placement import Placement
    from forge.serve.weights import Weights
    from forge.store.write.writer import Writer

Say = Callable[[str], None]

PLACE = GroupPlace(group_id=0, purpose=Purpose.CHAT, stage=0, step=0)
"""The only group of its store."""

FOLDER = "chats"
ATTEMPT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A problem for a run's model, and the limits of the answer."""

    run: str
    """A run, or `RUN:STEP` for the weights published after that step."""
    source: str
    """A problem file, or a bare function."""
    name: str = "stdin"
    """Name of the problem in messages and in the store."""
    turns: int = 3
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chatted:
    """A rollout and the store that holds it."""

    trajectory: Trajectory
    paths: RunPaths
    run: str
    policy_version: int
    """Version of the run's weights that answered."""

    @property
    def shown_path(self) -> Path:
        """The store's directory, relative to the working directory if it is below."""
        here = Path.cwd()
        root = self.paths.root
        return root.relative_to(here) if root.is_relative_to(here) else root

    def to_json(self) -> dict[str, Any]:
        """The output of `forge chat --json`."""
        more = {"run": self.run, "policy_version": self.policy_version}
        return {**asdict(self.trajectory), **more, "store": str(self.paths.root)}


def chat(request: ChatRequest, *, store_dir: Path, say: Say | None = None) -> Chatted:
    """Plays one rollout and stores it as a group of purpose `chat`; `say` receives the text as it
    is generated."""
    return anyio.run(partial(achat, request, store_dir=store_dir, say=say))


async def achat(request: ChatRequest, *, store_dir: Path, say: Say | None = None) -> Chatted:
    """`chat` inside an event loop."""
    name, step = split_step(request.run)
    paths = find_run(name, store_dir=store_dir)
    problem = from_source(request.source, name=request.name)
    weights = find_weights(paths, step)
    return await _chat(paths, weights, problem, request, store_dir, say or (lambda text: None))


async def _chat(
    paths: RunPaths,
    weights: Weights,
    problem: Problem,
    request: ChatRequest,
    store_dir: Path,
    say: Say,
) -> Chatted:
    experiment = load_experiment(paths.experiment)
    if experiment.serve.url:
        raise ConfigError(
            f"{paths.name}: its answers came from serve.url = {experiment.serve.url}; it has no"
            " weights of its own, so ask that server"
        )
    prompts = prompts_of_run(paths, experiment)
    experiment = small(experiment)
    machine = this_machine(experiment.store.dir, serve=experiment.serve)
    placement = place_on(experiment, machine, model_dir=weights.full)
    chat_template = ChatTemplate.load(weights.full, thinking=prompts.thinking)
    with claim(placement.gpus, run=f"forge chat {paths.name}"):
        async with (
            open_chat_store(
                paths, weights, experiment.store, store_dir=store_dir, seed=request.seed,
                gpus=placement.gpus,
            ) as store,
            _open_ports(
                experiment, weights, chat_template, placement, store, say, prompts=prompts
            ) as ports,
        ):  # fmt: skip
            await store.writer.put(problem)
            group = await play_group(
                problem, place=PLACE, rules=_rules(experiment, request), ports=ports
            )
    return Chatted(
        trajectory=group.trajectories[0],
        paths=store.paths,
        run=paths.name,
        policy_version=weights.version,
    )


@asynccontextmanager
async def _open_ports(
    experiment: Experiment,
    weights: Weights,
    chat_template: ChatTemplate,
    placement: Placement,
    store: ChatStore,
    say: Say,
    *,
    prompts: PromptSet,
) -> AsyncGenerator[Ports]:
    """An engine with the weights, and judges, on the GPUs of a placement."""
    serve = placement.settled(experiment.serve)
    with open_socket_dir() as socket_dir:
        async with (
            open_pool(
                experiment.judge,
                socket_dir=socket_dir,
                log_dir=store.log_dir,
                gpus=placement.judge,
            ) as pool,
            open_replicas(
                serve,
                weights=weights,
                stop_token_ids=chat_template.stop_token_ids,
                socket_dir=socket_dir,
                log_dir=store.log_dir,
                work_dir=store.work_dir,
                gpus=placement.serve_uuids,
                shared=placement.shared,
                max_lora_rank=lora_rank(experiment.model, adapter=weights.adapter),
                thinking=prompts.thinking,
            ),
            open_own_scorer(
                experiment.reward, socket_dir=socket_dir, log_dir=store.log_dir
            ) as scorer,
            ReplicaClient(socket_dir / "serve-0.sock", timeout_s=serve.request_timeout_s) as client,
        ):
            yield Ports(
                generate=_StreamingGenerate(client, chat_template.stop_token_ids, say),
                judge=partial(pool.judge, program=True),
                sink=_SayingSink(store.writer, say),
                prompter=TemplatePrompter(
                    prompts=prompts,
                    chat=chat_template,
                    context_tokens=serve.context_tokens,
                    max_completion_tokens=experiment.rollout.max_completion_tokens,
                ),
                scorer=scorer,
            )


def _rules(experiment: Experiment, request: ChatRequest) -> Rules:
    rollout = experiment.rollout
    return Rules(
        group_size=1,
        max_turns=request.turns,
        gamma=rollout.gamma,
        credit=rollout.credit,
        temperature=request.temperature,
        max_completion_tokens=rollout.max_completion_tokens,
        reward=experiment.reward,
        seed=request.seed,
    )


@dataclass(frozen=True, slots=True)
class _StreamingGenerate:
    """A Generate port that streams each piece of text to `say`."""

    client: ReplicaClient
    stop_token_ids: Sequence[int]
    say: Say

    async def __call__(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        assert n == 1, "a chat plays one rollout"
        made: list[Completion] = []
        async for chunk in self.client.stream(
            prompt.ids,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=self.stop_token_ids,
        ):
            self.say(chunk.text)
            if chunk.completion is not None:
                made.append(chunk.completion)
        self.say("\n")
        return made


@dataclass(frozen=True, slots=True)
class _SayingSink:
    """A sink that also passes the feedback of each turn to `say`, once."""

    sink: Any
    say: Say
    said: set[str] = field(default_factory=set[str])
    """Ids of turns whose feedback was passed; a turn is stored again when it gets its reward."""

    async def put(self, *records: Any) -> None:
        for record in records:
            if isinstance(record, Turn) and record.turn_id not in self.said:
                self.said.add(record.turn_id)
                self.say(f"\n{record.feedback}\n\n")
        await self.sink.put(*records)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStore:
    """An open store."""

    paths: RunPaths
    writer: Writer
    work_dir: Path
    """Place for whole models that an engine converts, too large for the /tmp of sockets; deleted at
    the end."""

    @property
    def log_dir(self) -> Path:
        """Logs of engine and judge."""
        return self.paths.logs(ATTEMPT)


@asynccontextmanager
async def open_chat_store(
    asked: RunPaths,
    weights: Weights,
    table: StoreTable,
    *,
    store_dir: Path,
    seed: int,
    gpus: Sequence[Gpu],
) -> AsyncGenerator[ChatStore]:
    """Creates the store of a chat with a run, and records how the chat ended: also one that Ctrl-C
    or a closed pipe cuts off.

    Raises:
        MachineError: `store_dir` cannot be written.
    """
    paths = create_run(asked.name, store_dir=store_dir / FOLDER)
    with open_run_lock(paths):
        async with open_writer(paths, table) as writer:
            await writer.put(
                await anyio.to_thread.run_sync(
                    lambda: describe_attempt(ATTEMPT, seed=seed, gpus=gpus)
                ),
                _event(asked, weights),
            )
            try:
                with TemporaryDirectory(prefix=".chat-", dir=paths.root) as work_dir:
                    yield ChatStore(paths=paths, writer=writer, work_dir=Path(work_dir))
            except BaseException as error:
                await _end(writer, _ending(error))
                raise
            await _end(writer, Ending(code=0, message="done"))


def _event(asked: RunPaths, weights: Weights) -> Event:
    return Event(
        at=time.time(),
        kind="chat",
        message=f"with {asked.name}, policy version {weights.version}",
        data={
            "run": asked.name,
            "path": str(asked.root),
            "policy_version": weights.version,
            "weights": weights.to_json(),
        },
    )


def _ending(error: BaseException) -> Ending:
    if all(isinstance(leaf, BrokenPipeError) for leaf in iter_leaves(error)):  # chat | head
        return Ending(code=INTERRUPTED, message="the reader of its output went away")
    return ending_of(error)


async def _end(writer: Writer, ending: Ending) -> None:
    row = AttemptEnd(
        attempt=ATTEMPT, ended_at=time.time(), exit_code=ending.code, reason=ending.message
    )
    with anyio.CancelScope(shield=True):
        await writer.put(row)
