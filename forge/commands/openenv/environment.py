# pyright: strict
"""Episodes for clients: resets and steps from parsed messages, whatever carries them.

Called by `app.py` and `websocket.py`. Every refusal is a Refusal with OpenEnv's code, the HTTP
status of the same meaning, and one line of text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from forge.commands.openenv.episode import Episode, NoVerdict, OutOfOrder
from forge.commands.openenv.models import ErrorCode, KernelAction, KernelObservation, ResetOptions
from forge.commands.openenv.problems import NoProblem, given_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.commands.openenv.episode import EpisodeRules
    from forge.commands.openenv.problems import ServedProblems
    from forge.commands.openenv.sessions import Sessions

ModelT = TypeVar("ModelT", bound=BaseModel)
NAME = "forge"
DESCRIPTION = (
    "Write Triton kernels that replace a PyTorch module. Every answer is compiled, run and compared"
    " in a sandbox; the reward and the feedback come from the verdict."
)
BUSY = 503
"""Status of a refusal after which the same request may succeed."""


class Refusal(Exception):
    """A request without an observation."""

    def __init__(self, code: ErrorCode, message: str, *, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        """HTTP status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Problems, rules and sessions that all clients share."""

    rules: EpisodeRules
    problems: ServedProblems
    sessions: Sessions
    now: Callable[[], float] = time.monotonic

    async def reset(self, data: Any) -> Episode:
        """A new episode. Raises Refusal."""
        options = parse(ResetOptions, data)
        try:
            if options.reference_code is not None:
                problem = await given_problem(options.reference_code)
                name = options.problem_id or problem.problem_id
            elif options.problem_id is not None:
                name, problem = self.problems.find(options.problem_id)
            else:
                name, problem = self.problems.choose(options.seed)
        except NoProblem as error:
            raise Refusal(ErrorCode.VALIDATION_ERROR, str(error), status=422) from None
        episode_id = options.episode_id or str(uuid4())
        return Episode(rules=self.rules, episode_id=episode_id, name=name, problem=problem)


async def step(episode: Episode, action: KernelAction) -> KernelObservation:
    """The observation after an answer. Raises Refusal."""
    try:
        return await episode.step(action.code)
    except OutOfOrder as error:
        raise Refusal(ErrorCode.EXECUTION_ERROR, str(error), status=409) from None
    except NoVerdict as error:
        status = BUSY if error.is_fault else 422
        raise Refusal(ErrorCode.EXECUTION_ERROR, str(error), status=status) from None


def parse(model: type[ModelT], data: Any) -> ModelT:
    """A message's data as a model. Raises Refusal, which names every field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [f"{_path(each['loc'])}: {each['msg'].lower()}" for each in error.errors()]
        raise Refusal(ErrorCode.VALIDATION_ERROR, "; ".join(lines)[:1000], status=422) from None


def payload(observation: KernelObservation) -> dict[str, Any]:
    """An observation as clients of OpenEnv read it: reward and end beside it. Its metadata is in
    both places, since clients of different versions look into one or the other."""
    inner = observation.model_dump(exclude={"reward", "done"})
    return {
        "observation": inner,
        "reward": observation.reward,
        "done": observation.done,
        "metadata": observation.metadata,
    }


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:40] for part in loc) or "data"
