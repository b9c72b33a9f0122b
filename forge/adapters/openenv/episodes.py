"""Episodes: a problem and the answers to it, each judged, rewarded and answered with feedback.

An answer is a source, or a model's reply with the source in a fence; `class Model` in place of
`ModelNew` is accepted, since kernrl asks for that name. `level1/19_ReLU` is `L1_19_ReLU`, as in
kernrl; a client may also give the id, a number, KernelBench's `level=1 problem_id=19`, or part of a
name. Promises: a fault of the judge is neither a turn nor a reward; the numbers of answers and of
open episodes are bounded; every refusal is a Refusal with OpenEnv's code, the HTTP status of the
same meaning, and one line of text.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import uuid4

import anyio.to_thread
from pydantic import BaseModel, ValidationError

from forge.adapters.answering import for_reward, reward_of
from forge.adapters.openenv.models import (
    ErrorCode,
    KernelAction,
    KernelObservation,
    KernelState,
    ResetOptions,
)
from forge.adapters.subjects import KnownProblems, find_code, problem_from_text
from forge.adapters.verdict import Verdict
from forge.config.schema import RewardTable
from forge.data.answers import fenced_blocks
from forge.data.problem_files import find_problem
from forge.data.prompts.prompt_set import PromptSet
from forge.errors import ConfigError
from forge.process.ask import LOOP_BYTES
from forge.process.server.bodies import INVALID, first_mistake
from forge.process.server.door import Refused
from forge.records import Problem, Reason
from forge.records.problem import ReferenceModule
from forge.rollout.rewards import is_good_enough

ModelT = TypeVar("ModelT", bound=BaseModel)
NAME = "forge"
DESCRIPTION = (
    "Write Triton kernels that replace a PyTorch module. Every answer is compiled, run and compared"
    " in a sandbox; the reward and the feedback come from the verdict."
)
BUSY = 503
"""Status of a refusal after which the same request may succeed."""
TIMES = ("candidate_us", "baseline_us", "speedup_low")
_LEVEL = re.compile(r"level[_-]?\d+", re.IGNORECASE)
MAX_NAMES = 5


class Refusal(Refused):
    """A request without an observation."""

    def __init__(self, code: ErrorCode, message: str, *, status: int) -> None:
        super().__init__(status, message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    judge: Callable[[ReferenceModule, str], Awaitable[Verdict]]
    """Judges an answer; a fault is a verdict too."""
    reward: RewardTable
    prompts: PromptSet
    max_turns: int
    device: str


@dataclass(slots=True, kw_only=True)
class Episode:
    rules: EpisodeRules
    episode_id: str
    name: str
    problem: ReferenceModule
    turn: int = 0
    before: Verdict | None = None
    best_speedup: float = 0.0
    is_solved: bool = False
    is_judging: bool = False
    used_at: float = 0.0
    """Time of its last request over HTTP, in seconds."""

    @property
    def is_done(self) -> bool:
        return self.is_solved or self.turn >= self.rules.max_turns

    def start(self) -> KernelObservation:
        return self._observe(reward=0.0, compilation_success=True)

    async def step(self, action: KernelAction) -> KernelObservation:
        """Judge an answer. Raises Refusal for one that is out of order or has no verdict."""
        if self.is_done or self.is_judging:
            ended = f"the episode ended after {self.turn} answers; reset starts another"
            judged = "a step of this episode is being judged; wait for its answer"
            why = ended if self.is_done else judged
            raise Refusal(ErrorCode.EXECUTION_ERROR, why, status=409)
        self.is_judging = True
        try:
            answer = answer_in(action.code, entry_point=self.problem.entry_point)
            verdict = await self.rules.judge(self.problem, answer)
        finally:
            self.is_judging = False
        reward = reward_of(verdict, self.rules.reward, before=self.before)
        if reward.value is None:
            raise _no_verdict(verdict)
        self.before = verdict
        self.turn += 1
        self.is_solved = is_good_enough(for_reward(verdict), self.rules.reward)
        if verdict.correct:
            self.best_speedup = max(self.best_speedup, verdict.speedup or 0.0)
        shown = ("status", "reason", *(TIMES if verdict.speedup is not None else ()))
        return self._observe(
            reward=reward.value,
            feedback=verdict.feedback,
            compilation_success=verdict.compiled,
            compilation_error=None if verdict.compiled else verdict.detail,
            correctness_pass=verdict.correct if verdict.compiled else None,
            speedup=verdict.speedup,
            metadata={
                **{name: getattr(verdict, name) for name in shown},
                "reward_terms": dict(reward.terms),
            },
        )

    def state(self) -> KernelState:
        return KernelState(
            episode_id=self.episode_id, step_count=self.turn, problem_id=self.name,
            turn=self.turn, max_turns=self.rules.max_turns, best_speedup=self.best_speedup,
            solved=self.is_solved,
        )  # fmt: skip

    def _observe(
        self, *, metadata: dict[str, Any] | None = None, **fields: Any
    ) -> KernelObservation:
        messages = self.rules.prompts.first_messages(self.problem)
        return KernelObservation(
            problem_id=self.name,
            problem_description="\n\n".join(message.content for message in messages),
            reference_code=self.problem.source,
            gpu_info=self.rules.device,
            turn=self.turn,
            max_turns=self.rules.max_turns,
            done=self.is_done,
            metadata={"episode_id": self.episode_id, "solved": self.is_solved, **(metadata or {})},
            **fields,
        )


def _no_verdict(verdict: Verdict) -> Refusal:
    """The judge failed, and the same step may succeed later, or the problem cannot be judged."""
    what = "the judge failed" if verdict.infra else "the problem cannot be judged"
    advice = "send the step again" if verdict.infra else "reset with another problem"
    text = f"{what}, not the answer: {verdict.reason}: {verdict.detail}; {advice}"
    return Refusal(ErrorCode.EXECUTION_ERROR, text, status=BUSY if verdict.infra else 422)


def answer_in(text: str, *, entry_point: str) -> str:
    """The source in an answer, which may have the name of the reference alone; the answer itself
    without one."""
    found = find_code(text, entry_point=entry_point)
    if found.is_ok:
        return _renamed(found.code, entry_point)
    if found.reason is Reason.NO_ENTRY_POINT:
        for block in reversed(fenced_blocks(text)):
            if (renamed := _renamed(block.code, entry_point)) != block.code:
                return renamed
    return text


def _renamed(code: str, entry_point: str) -> str:
    """The source with the name that the judge asks for, if it has the reference's alone."""
    named = re.compile(rf"^class[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    if f"{entry_point}New" in code or not named.search(code):
        return code
    return f"{code.rstrip()}\n\n\n{entry_point}New = {entry_point}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    rules: EpisodeRules
    problems: ServedProblems
    sessions: Sessions
    now: Callable[[], float] = time.monotonic

    async def reset(self, data: Any) -> Episode:
        """A new episode. Raises Refusal."""
        options = parse(ResetOptions, data)
        if options.reference_code is not None:
            problem = await given_problem(options.reference_code)
            name = options.problem_id or problem.problem_id
        elif options.problem_id is not None:
            name, problem = self.problems.find(options.problem_id)
        else:
            name, problem = self.problems.choose(options.seed)
        episode_id = options.episode_id or str(uuid4())
        return Episode(rules=self.rules, episode_id=episode_id, name=name, problem=problem)


def parse(model: type[ModelT], data: Any) -> ModelT:
    """A message's data as a model. Raises Refusal, which names the first field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Refusal(
            ErrorCode.VALIDATION_ERROR, first_mistake(error, model), status=INVALID
        ) from None


def payload(observation: KernelObservation) -> dict[str, Any]:
    """An observation as clients of OpenEnv read it: reward and end next to it. Its metadata is in
    both places, since clients of different versions look into one or the other."""
    inner = observation.model_dump(exclude={"reward", "done"})
    return {
        "observation": inner,
        "reward": observation.reward,
        "done": observation.done,
        "metadata": observation.metadata,
    }


@dataclass(slots=True, kw_only=True)
class Sessions:
    """Open connections, and episodes over HTTP by their ids."""

    limit: int
    """Maximum of both together."""
    idle_s: float
    """Seconds without a request after which an episode over HTTP is closed."""
    num_connections: int = 0
    _episodes: dict[str, Episode] = field(default_factory=dict[str, "Episode"])

    @property
    def num_open(self) -> int:
        return self.num_connections + len(self._episodes)

    def connect(self, *, now: float) -> None:
        """Take a place for a connection. Raises Refusal."""
        self._make_place(now)
        self.num_connections += 1

    def disconnect(self) -> None:
        self.num_connections -= 1

    def open(self, episode: Episode, *, now: float) -> None:
        """Keep an episode over HTTP, in place of one with the same id. Raises Refusal."""
        if episode.episode_id not in self._episodes:
            self._make_place(now)
        self._episodes[episode.episode_id] = episode
        episode.used_at = now

    def find(self, episode_id: str | None, *, now: float) -> Episode | None:
        """An open episode; without an id, the only one. None if there is no such episode."""
        self._expire(now)
        if episode_id is None and len(self._episodes) == 1:
            episode_id = next(iter(self._episodes))
        found = None if episode_id is None else self._episodes.get(episode_id)
        if found is not None:
            found.used_at = now
        return found

    def _make_place(self, now: float) -> None:
        if self.num_open < self.limit:
            return
        self._expire(now)
        ended = [episode for episode in self._episodes.values() if episode.is_done]
        if self.num_open >= self.limit and ended:
            del self._episodes[min(ended, key=lambda episode: episode.used_at).episode_id]
        if self.num_open >= self.limit:
            text = f"{self.limit} episodes are open, the maximum; try again later"
            raise Refusal(ErrorCode.CAPACITY_REACHED, text, status=BUSY)

    def _expire(self, now: float) -> None:
        self._episodes = {
            key: episode
            for key, episode in self._episodes.items()
            if now - episode.used_at <= self.idle_s or episode.is_judging
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProblems:
    by_name: Mapping[str, Problem]

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.by_name)

    def find(self, name: str) -> tuple[str, Problem]:
        """The name and the problem that a client means. Raises Refusal."""
        by_id = {problem.problem_id: known for known, problem in self.by_name.items()}
        found = name if name in self.by_name else by_id.get(find_problem(name, list(by_id)) or "")
        found = found or next((each for each in self.names if name and name in each), None)
        if found is None:
            listed = ", ".join(self.names[:MAX_NAMES])
            more = len(self.names) - MAX_NAMES
            rest = f" and {more} more" if more > 0 else ""
            raise _no_problem(
                f"problem_id: {name[:100]}: no such problem; there are {listed}{rest}"
            )
        return found, self.by_name[found]

    def choose(self, seed: int | None) -> tuple[str, Problem]:
        """A problem at random; the same for the same seed. Raises Refusal if there is none."""
        if not self.names:
            raise _no_problem("the server has no problems of its own; send reference_code")
        name = random.Random(seed).choice(self.names)
        return name, self.by_name[name]


def serve_problems(known: KnownProblems | None) -> ServedProblems:
    """All known problems: `L1_19_ReLU` for a file in a folder of a level, else by their ids. Raises
    ConfigError for a file that has no problem."""
    by_name: dict[str, Problem] = {}
    for problem in () if known is None else (known.problem(known.file(n)) for n in known.names):
        name = problem.problem_id
        if _LEVEL.fullmatch(problem.family):
            name = f"L{problem.level}_{PurePath(name).name}"
        by_name[problem.problem_id if name in by_name else name] = problem
    return ServedProblems(by_name=by_name)


async def given_problem(source: str) -> ReferenceModule:
    """The problem in a source that a client sends. Raises Refusal."""
    try:
        if len(source) > LOOP_BYTES:
            return await anyio.to_thread.run_sync(problem_from_text, source)
        return problem_from_text(source)
    except ConfigError as error:
        raise _no_problem(f"reference_code: {' '.join(str(error).split())}") from error


def _no_problem(text: str) -> Refusal:
    return Refusal(ErrorCode.VALIDATION_ERROR, text, status=422)
