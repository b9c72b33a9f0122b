"""The loop's ports: what it needs from engine, judge and store. `runner` provides the real ones,
tests provide fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from forge.data.prompts.prompt_set import Exchange
from forge.records import Completion, EngineLoad, Judge, Problem, Prompt, Reason, Verdict
from forge.tools.toolbox import Call, Toolbox


class Generate(Protocol):
    """Samples continuations from the current policy."""

    async def __call__(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        """n completions of one prompt, each from one set of weights, first token to last.

        Raises ChildDied or Stalled if no replica can answer.
        """
        ...


class Sink(Protocol):
    """Stores records."""

    async def put(self, *records: Any) -> None:
        """Takes records in order; raises MachineError if they can no longer be stored."""
        ...


class Prompter(Protocol):
    """Turns a conversation into tokens and back."""

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """The next turn's prompt, with as many of the newest attempts as fit; None if not even
        one does."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion, with its thinking, without the stop token."""
        ...

    def feedback(self, verdict: Verdict) -> str:
        """The message to the model about a verdict."""
        ...

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        """The candidate's source and a reason; the source is empty if there is no usable answer.
        Never raises."""
        ...

    def find_call(self, message: str) -> Call | None:
        """The call of a tool that a message asks for; None for an answer. Never raises."""
        ...

    def reply(
        self, prompt: Prompt, completion: Completion, *, message: str, result: str
    ) -> Prompt | None:
        """The prompt that a turn goes on from: one before, what was sampled after it, and the reply
        of a tool. None if that leaves no room for a completion.

        Args:
            message: text of the completion.
        """
        ...


class Scorer(Protocol):
    """Rewards verdicts in place of the terms of `[reward]`."""

    per: Literal["turn", "group"]
    """`turn`: each verdict by itself; `group`: all verdicts of a group together, at its end."""

    async def score(self, verdict: Verdict, *, where: str) -> Mapping[str, float]:
        """Terms of one verdict; their sum is the reward. `where` names the turn in messages. Raises
        ForgeError, which ends the run."""
        ...

    async def score_group(
        self, rollouts: Sequence[Sequence[Verdict]], *, where: str
    ) -> Sequence[Sequence[Mapping[str, float]]]:
        """Terms of all verdicts of a group, by rollout and turn, in the same form."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All ports of playing a group."""

    generate: Generate
    judge: Judge
    sink: Sink
    prompter: Prompter
    load: Callable[[], EngineLoad | None] = lambda: None
    """The engine's current load, without waiting; None if it does not report it."""
    scorer: Scorer | None = None
    """Rewards of the user's own; None for the terms of `[reward]`."""
    tools: Toolbox | None = None
    """Tools that a turn may call before its answer."""
    shown: tuple[Exchange, ...] = ()
    """Judged attempts of earlier groups, which each conversation begins with."""
    is_apart: bool = False
    """Each rollout requests its first turn itself: for an engine that caches the prompt."""
    refused: tuple[type[Exception], ...] = ()
    """Errors by which `generate` refuses one request, mostly as too long. After its first turn they
    end a rollout as `context_full`; a refused first turn is raised."""
