"""`forge mcp`: the judge and the tools of rollouts for any agent, as an MCP server on stdin and
stdout.

It answers at once; the judges start meanwhile, and a call waits for them. A mistake of the agent is
a tool's error. An agent's candidates are as hostile as a model's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from forge.adapters.answering import Answering, open_answering
from forge.adapters.pools import JudgeSettings
from forge.adapters.subjects import MAX_SHOWN, find_code, read_answer, read_problem
from forge.config.schema import JudgeTable
from forge.errors import ConfigError, ForgeError, MachineError, pip_install
from forge.process.devices import Gpu
from forge.rollout.play import NO_ANSWER_WORDS
from forge.tools.toolbox import TOOLS, Call, Toolbox, at_sizes, search_docs
from forge.version import __version__

ARGUMENTS = """problem: path of a file in KernelBench's layout (Model, get_inputs, \
get_init_inputs), or its source. candidate: path of a Python file that defines ModelNew with \
Triton kernels, or its source."""
JUDGE = """Judge a Triton kernel: does it compute what the reference does, on inputs with secret \
planted values, and how fast is it where there is a GPU."""


def serve_mcp(settings: JudgeSettings) -> None:
    """Serves until the client closes stdin, or a signal ends the process: Ctrl-C, too, since a
    thread that reads stdin cannot be woken. Judges end after it. Raises ConfigError or
    MachineError."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        raise MachineError(f"mcp: the package is not installed: {pip_install('mcp')}") from None
    tools = AgentTools(settings.table(), settings.gpus())
    server = MCPServer("forge", version=__version__, log_level="WARNING")
    for name in ("judge", "run", "profile", "docs"):
        words = TOOLS[name].description if name in TOOLS else JUDGE
        server.add_tool(
            getattr(tools, name),
            description=words if name == "docs" else f"{words}\n{ARGUMENTS}",
            structured_output=False,
        )
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(tools.serve, server)


@dataclass(eq=False)
class AgentTools:
    table: JudgeTable
    gpus: Sequence[Gpu]
    _answering: Answering | None = None
    _started: anyio.Event = field(default_factory=anyio.Event)

    async def serve(self, server: Any) -> None:
        """Serves MCP while the judges start and run. Raises MachineError, in a group, if they
        cannot."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_judges)
            await server.run_stdio_async()
            tasks.cancel_scope.cancel()

    async def judge(self, problem: str, candidate: str) -> str:
        with _as_tool_errors():
            subject, text = read_problem(problem), _read_candidate(candidate)
            answering = await self._judges()
            return (await answering.judge(subject, text)).feedback

    async def run(
        self, problem: str, candidate: str, sizes: dict[str, bool | int | float] | None = None
    ) -> str:
        """One call on fresh inputs. sizes: values of the problem's module constants."""
        return await self._ask(Call("run", {"sizes": sizes or {}}), problem, candidate)

    async def profile(self, problem: str, candidate: str) -> str:
        return await self._ask(Call("profile", {}), problem, candidate)

    async def docs(self, query: str) -> str:
        with _as_tool_errors():
            return await search_docs(query)

    async def _ask(self, call: Call, problem: str, candidate: str) -> str:
        with _as_tool_errors():
            subject, text = read_problem(problem), _read_candidate(candidate)
            found = find_code(text, entry_point=subject.entry_point)
            if not found.code:
                words = NO_ANSWER_WORDS.get(found.reason, found.reason)
                raise ConfigError(f"candidate: {words.format(name=subject.entry_point)}")
            at_sizes(subject, call.arguments.get("sizes", {}))
            pool = (await self._judges()).pool
            toolbox = Toolbox(ask=pool.judge, has_times=lambda: pool.is_timed)
            return await toolbox.reply(call, problem=subject, code=found.code)

    async def _keep_judges(self) -> None:
        async with open_answering(self.table, self.gpus) as self._answering:
            self._started.set()
            await anyio.sleep_forever()

    async def _judges(self) -> Answering:
        await self._started.wait()
        assert self._answering is not None
        return self._answering


@contextmanager
def _as_tool_errors() -> Generator[None]:
    """Errors with a message for the user reach the agent."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except ForgeError as error:
        raise ToolError(str(error)) from error


def _read_candidate(candidate: str) -> str:
    """The text of a candidate, or of the file that it names. Raises ConfigError."""
    if "\n" in candidate:
        return read_answer(candidate)
    if not os.path.isfile(candidate):
        raise ConfigError(
            f"candidate: {candidate[:MAX_SHOWN]!r}: no such file; the path of a file, or its source"
        )
    return read_answer(Path(candidate))
