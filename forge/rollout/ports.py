"""What the loop needs from others, by contract. `runner` provides the real ones, tests fakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.prompts import Exchange
    from forge.records import Completion, Problem, Prompt, Reason, Verdict


class Generate(Protocol):
    """Samples continuations from the current policy."""

    async def __call__(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        """n completions of one prompt, each on one set of weights from its first token to its last.

        Raises ChildDied or Stalled when no replica can answer.
        """
        ...


class Judge(Protocol):
    """Judges one candidate."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        """Never raises for what a candidate does; an infrastructure fault is a verdict too
        (`infra_error`)."""
        ...


class EngineLoad(Protocol):
    """How full the engine is, over all replicas."""

    @property
    def kv_use(self) -> float:
        """Share of the KV cache in use, 0..1."""
        ...

    @property
    def running(self) -> int:
        """Samples being generated."""
        ...

    @property
    def waiting(self) -> int:
        """Samples that the engine has and cannot run yet."""
        ...

    @property
    def slots(self) -> int:
        """Samples that it runs at most."""
        ...


class Load(Protocol):
    """Tells how full the engine is."""

    def __call__(self) -> EngineLoad | None:
        """As of now, without waiting; None where the engine does not say."""
        ...


def no_load() -> EngineLoad | None:
    """For an engine that does not say."""
    return None


class Sink(Protocol):
    """Where records go."""

    async def put(self, *records: Any) -> None:
        """Takes records in order; raises MachineError when they can no longer be stored."""
        ...


class Prompter(Protocol):
    """Turns a conversation into tokens and back."""

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """The next turn's prompt, oldest attempts dropped until it fits; None where even the
        problem alone does not."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion, thinking kept, stop token dropped."""
        ...

    def feedback(self, verdict: Verdict) -> str:
        """What the next turn is told."""
        ...

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        """Candidate source and reason code; the source is empty where there is no usable answer.
        Never raises."""
        ...
