# pyright: strict
"""`forge judge --serve --openenv PROBLEMS`: starts judges, and serves the environment with them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from forge.commands.judge.files import require_path
from forge.commands.openenv.app import routes_of
from forge.commands.openenv.environment import Environment
from forge.commands.openenv.episode import EpisodeRules
from forge.commands.openenv.problems import serve_problems
from forge.commands.openenv.sessions import Sessions
from forge.config.schema import PromptTable, RewardTable
from forge.errors import ConfigError, MachineError
from forge.evalpool.links import TOKEN_VARIABLE
from forge.evalpool.served import serve_pool
from forge.runner.prepare.prompt_facts import prompts_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.routing import BaseRoute

    from forge.commands.judge.settings import JudgeSettings
    from forge.config.schema.problems import RowFormat
    from forge.evalpool.pool import Pool

PRESET = "standard"
"""Preset of the prompts: it states the rules, since clients have models of any kind."""
MAX_TURNS = 16
"""Maximum of `--turns`, as of rollout.max_turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRequest:
    """Options of an environment."""

    problems: Path | None
    """A directory, a problem file or a file of rows; None: clients send the sources."""
    format: RowFormat = "kernelbench"
    turns: int = 3
    sessions: int = 256
    """Maximum of open episodes."""
    idle_s: float = 900.0
    """Seconds without a request after which an episode is closed."""


def serve_environment(
    request: EnvironmentRequest,
    settings: JudgeSettings,
    *,
    socket: Path | None,
    listen: str | None,
) -> None:
    """Serve until a signal ends it.

    Raises:
        ConfigError: an option, a path or an address that cannot be used.
        MachineError: a missing package or GPU, or no sandbox.
    """
    _check(request, settings)
    table, gpus = settings.table(), settings.gpus()
    problems = serve_problems(request.problems, format=request.format)
    prompts = prompts_for(PromptTable(preset=PRESET), table, gpus)

    def routes(pool: Pool) -> Sequence[BaseRoute]:
        rules = EpisodeRules(
            judge=pool.judge, reward=RewardTable(), prompts=prompts, max_turns=request.turns,
            device=gpus[0].name if gpus else "cpu",
        )  # fmt: skip
        sessions = Sessions(limit=request.sessions, idle_s=request.idle_s)
        return routes_of(Environment(rules=rules, problems=problems, sessions=sessions))

    token = os.environ.get(TOKEN_VARIABLE) or None
    serve_pool(table, socket=socket, listen=listen, token=token, gpus=gpus, more=routes)


def _check(request: EnvironmentRequest, settings: JudgeSettings) -> None:
    if settings.url is not None:
        raise ConfigError("--url: not allowed with --serve, which runs its own judges")
    if request.problems is not None:
        require_path(request.problems)
    if not 1 <= request.turns <= MAX_TURNS:
        raise ConfigError(f"--turns {request.turns}: 1 to {MAX_TURNS}")
    if find_spec("websockets") is None:
        raise MachineError(
            "--openenv: the package websockets is missing, which WebSockets need;"
            " install it: pip install 'forge[openenv]'"
        )
