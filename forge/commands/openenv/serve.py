# pyright: strict
"""`forge judge --serve --openenv`: starts judges, and serves the environment beside `/v1/`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from forge.api.http.serving import serve
from forge.api.subjects import known_problems
from forge.commands.openenv.app import openapi_paths, routes_of
from forge.commands.openenv.environment import Environment
from forge.commands.openenv.episode import EpisodeRules
from forge.commands.openenv.problems import serve_problems
from forge.commands.openenv.sessions import Sessions
from forge.config.schema import PromptTable, RewardTable
from forge.errors import ConfigError, MachineError, Stalled, pip_install
from forge.records import Reason, Status, Verdict
from forge.runner.prepare.prompt_facts import prompts_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from starlette.routing import BaseRoute

    from forge.commands.judge.settings import JudgeSettings
    from forge.config.schema.problems import RowFormat
    from forge.evalpool.pool import Pool
    from forge.evalpool.served import PoolApp
    from forge.records.problem import ReferenceModule

PRESET = "standard"
"""Preset of the prompts: it states the rules, since clients have models of any kind."""
MAX_TURNS = 16
"""Maximum of `--turns`, as of rollout.max_turns."""
MAX_DETAIL = 500
"""Maximum length of the detail of a verdict that no judge gave."""


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
    candidate: object,
    socket: Path | None,
    listen: str | None,
) -> None:
    """Serve until a signal ends it.

    Raises:
        ConfigError: an option, a path or an address that cannot be used.
        MachineError: a missing package or GPU, or no sandbox.
    """
    if not 1 <= request.turns <= MAX_TURNS:
        raise ConfigError(f"--turns {request.turns}: 1 to {MAX_TURNS}")
    if find_spec("websockets") is None:
        raise MachineError(
            "--openenv: the package websockets is missing, which WebSockets need;"
            f" install it: {pip_install('openenv')}"
        )
    table, gpus = settings.table(), settings.gpus()
    problems = serve_problems(known_problems(request.problems, format=request.format))
    prompts = prompts_for(PromptTable(preset=PRESET), table, gpus)

    def routes(pool: Pool, _served: PoolApp) -> Sequence[BaseRoute]:
        async def judge(problem: ReferenceModule, code: str) -> Verdict:
            try:
                return await pool.judge(problem, code)
            except Stalled as error:
                detail = str(error)[:MAX_DETAIL]
                return Verdict(status=Status.INFRA_ERROR, reason=Reason.NO_JUDGE, detail=detail)

        rules = EpisodeRules(
            judge=judge, reward=RewardTable(), prompts=prompts, max_turns=request.turns,
            device=gpus[0].name if gpus else "cpu",
        )  # fmt: skip
        sessions = Sessions(limit=request.sessions, idle_s=request.idle_s)
        return routes_of(Environment(rules=rules, problems=problems, sessions=sessions))

    serve(
        settings, problems=request.problems, candidate=candidate, format=request.format,
        socket=socket, listen=listen, more=routes, more_paths=openapi_paths(),
    )  # fmt: skip
