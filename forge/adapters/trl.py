"""TRL's GRPOTrainer: a reward function, and an environment with several turns.

    trainer = GRPOTrainer(..., reward_funcs=kernel_reward("http://127.0.0.1:8200"))
    trainer = GRPOTrainer(..., environment_factory=kernel_environment("http://127.0.0.1:8200"))

The dataset's column `problem` has a problem's source, or its name on the server; `rows.kernel_rows`
makes such rows. An answer without a verdict is None: TRL leaves it out of its group's mean, and its
advantage is 0.

Turns: TRL's environments answer tool calls, so the model must call `submit_kernel`, one rollout
after the other; one reward belongs to a rollout, and all of its tokens get the same advantage. It
is the return of the first turn. Lost: the return of each turn, and so the credit of a repair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forge.adapters.scoring import Attempts, ServedScorer, text_of

COLUMN = "problem"


def kernel_reward(
    url: str | None = None, *, column: str = COLUMN, **options: Any
) -> Callable[..., list[float | None]]:
    """A function for `reward_funcs`. `options` are those of `ServedScorer`. Raises ConfigError."""
    scorer = ServedScorer(url, **options)

    def kernel(completions: list[Any], **given: Any) -> list[float | None]:
        outcomes = scorer.score_all(given[column], [text_of(each) for each in completions])
        for name in outcomes[0].facts() if outcomes and "log_metric" in given else ():
            values = [each.facts()[name] for each in outcomes]
            given["log_metric"](f"kernel/{name}", sum(values) / len(values))
        return [each.reward for each in outcomes]

    return kernel


class KernelEnvironment:
    """One rollout: the model submits kernels until one is good enough, or no turn is left."""

    def __init__(self, scorer: ServedScorer, **rules: Any) -> None:
        self._scorer = scorer
        self._rules = rules
        self._attempts = Attempts(scorer=scorer, problem="", **rules)

    def reset(self, **columns: Any) -> None:
        """Start the rollout of a dataset's row, whose prompt has the problem already."""
        self._attempts = Attempts(scorer=self._scorer, problem=columns[COLUMN], **self._rules)

    def submit_kernel(self, code: str) -> str:
        """Compile, run and check a Triton kernel against the reference.

        Args:
            code: The whole module, with a class ModelNew that replaces Model.

        Returns:
            The judge's report.
        """
        if self._attempts.is_over:
            return "No turn is left. Stop here."
        return self._attempts.answer(code).feedback

    def get_reward(self) -> float | None:
        """The reward of the rollout; None without a verdict."""
        return self._attempts.reward


def kernel_environment(
    url: str | None = None, *, rules: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[], KernelEnvironment]:
    """A function for `environment_factory`. `rules` are fields of `Attempts`: max_turns, gamma,
    stop_at_speedup; `options` are those of `ServedScorer`. Raises ConfigError."""
    scorer = ServedScorer(url, **options)
    return lambda: KernelEnvironment(scorer, **(rules or {}))
