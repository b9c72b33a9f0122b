# pyright: standard
"""verifiers (v1), and prime-rl through it: a taskset of problems, and an environment with turns.

`examples/forge_kernels.py` makes it a plugin. Each reply is judged, and the feedback is the user's
next message. Without a verdict, NoScore is the episode's error: prime-rl trains on none with one.

Turns: a trace has one reward, `kernel`: the return of the first turn. Those of all are metrics,
`return_0`, `return_1`, ... Lost in prime-rl as it comes: advantages are per trace. Its traces can
carry them per message (`MessageNode.advantages`), for an algorithm that reads these metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from forge.adapters.rows import kernel_rows
from forge.adapters.scoring import GAMMA, MAX_TURNS, Attempts, NoScore, ServedScorer
from forge.errors import ConfigError


class KernelData(vf.TaskData):
    problem: str


class KernelConfig(vf.TasksetConfig):
    """Options below `--env.taskset.`: directory or file of problems, and preset of the prompt."""

    problems: Path | None = None
    preset: str = "standard"


class KernelTaskset(vf.Taskset[vf.Task[KernelData], KernelConfig]):
    def load(self) -> Iterator[Any]:
        """Tasks in the order of the problems. Raises ConfigError."""
        if self.config.problems is None:
            raise ConfigError("--env.taskset.problems: missing; a directory or a file")
        for row in kernel_rows(self.config.problems, preset=self.config.preset):
            said = {f"{each['role']}_prompt": each["content"] for each in row.pop("prompt")}
            prompts = {"prompt": said["user_prompt"], "system_prompt": said.get("system_prompt")}
            yield vf.Task(KernelData(**row, **prompts), self.config.task)


class KernelEnvConfig(vf.EnvConfig):
    """Options below `--env.`. The player is a chat without tools, which needs no sandbox here."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    url: str | None = None
    turns: int = MAX_TURNS
    gamma: float = GAMMA


class KernelEnv(vf.Env[KernelEnvConfig]):
    """Episodes of several replies, each answered with the judge's feedback."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play one episode. Raises NoScore."""
        rules = {"max_turns": self.config.turns, "gamma": self.config.gamma}
        attempts = Attempts(ServedScorer(self.config.url), task.data.problem, **rules)
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                scored = await asyncio.to_thread(attempts.answer, segment.last_reply)
                if scored.reward is None:
                    raise NoScore(scored.feedback)
                if attempts.is_over:
                    break
                segment = await interaction.turn(scored.feedback)
        if interaction.trace.has_error:  # the model's server failed
            return
        interaction.trace.record_reward("kernel", attempts.reward)
        for number, value in enumerate(attempts.returns() or ()):
            interaction.trace.record_metric(f"return_{number}", value)
