"""`forge mcp` answers the client of the package mcp."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.evalpool.judged import CODE, SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.anyio
SIZED = f"N = 64\n{SOURCE.replace('randn(64)', 'randn(N)')}"


async def test_a_client_calls_every_tool(tmp_path: Path) -> None:
    from mcp import Client, StdioServerParameters

    problem, candidate = tmp_path / "add.py", tmp_path / "kernel.py"
    problem.write_text(SIZED)
    candidate.write_text(CODE)
    paths = {"problem": str(problem), "candidate": str(candidate)}
    wrong = {"problem": SIZED, "candidate": CODE.replace("+ 1", "+ 2")}
    args = ["-m", "forge", "mcp", "--device", "cpu", "--workers", "1"]
    server = StdioServerParameters(command=sys.executable, args=args)
    async with Client(server, read_timeout_seconds=300) as client:

        async def call(name: str, given: Mapping[str, Any], *, fails: bool = False) -> str:
            found = await client.call_tool(name, dict(given))
            assert found.is_error == fails, found
            return found.content[0].text  # pyright: ignore[reportAttributeAccessIssue]

        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} == {"judge", "run", "profile", "docs"}
        assert "tl.dot(input, other" in await call("docs", {"query": "tl.dot"})
        assert "correct: ok" in await call("judge", paths)
        assert "wrong: mismatch" in await call("judge", wrong)
        assert "agrees with the reference" in await call("run", {**paths, "sizes": {"N": 7}})
        assert "largest difference: 1" in await call("run", wrong)
        profile = await call("profile", paths)
        assert "launch of kernel: grid 1x1x1" in profile
        assert "no GPU here" in profile
        assert "no such file" in await call("judge", {**paths, "problem": "gone.py"}, fails=True)
        assert "no constant 'K'" in await call("run", {**paths, "sizes": {"K": 7}})
        assert "no candidate" in await call("run", {**paths, "candidate": "pass"})


def test_without_its_package_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge.cli import app
    from forge.errors import MachineError

    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    ran = CliRunner().invoke(app, ["mcp", "--device", "cpu"])
    assert isinstance(ran.exception, MachineError)
    assert "forge-kernels[mcp]" in str(ran.exception)
