"""`forge mcp` answers the client of the package mcp."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from typer.testing import CliRunner

from tests.evalpool.judged import CODE, SOURCE

SIZED = f"N = 64\n{SOURCE.replace('randn(64)', 'randn(N)')}"
CLIENT = {"name": "test", "version": "1"}


async def test_a_client_calls_every_tool(tmp_path):
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
        assert "no constant 'K'" in await call("run", {**paths, "sizes": {"K": 7}}, fails=True)
        for name in ("judge", "run", "profile"):
            gone = await call(name, {**paths, "candidate": "gone.py"}, fails=True)
            assert "candidate: 'gone.py': no such file" in gone
        no_code = await call("run", {**paths, "candidate": "pass\n"}, fails=True)
        assert "candidate: no complete fenced code block" in no_code


def test_ctrl_c_ends_it_while_the_client_keeps_stdin_open():
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": CLIENT}
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    args = [sys.executable, "-m", "forge", "mcp", "--device", "cpu", "--workers", "1"]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        assert "serverInfo" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(timeout=60) == -signal.SIGINT
        finally:
            server.kill()


def test_without_its_package_it_names_the_extra(monkeypatch):
    from forge.cli import app
    from forge.errors import MachineError

    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    ran = CliRunner().invoke(app, ["mcp", "--device", "cpu"])
    assert isinstance(ran.exception, MachineError)
    assert "forge-kernels[mcp]" in str(ran.exception)
