"""Child processes: real children, real signals."""

import errno
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from forge.errors import ChildDied, MachineError, Stalled
from forge.process.ask import open_client
from forge.process.child import ChildSpec, _spawn, open_child
from forge.process.environment import child_env
from forge.process.sockets import open_socket_dir

SERVER = """
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from forge.process.lease import hold_lease
from forge.process.server.serving import serve
config = hold_lease()
print("hello from", config["word"])
async def health(request):
    return JSONResponse({"ok": True, "word": config["word"]})
serve(Starlette(routes=[Route("/health", health)]), Path(config["socket"]))
print("served")
"""

GRANDPARENT = """
import os, subprocess, sys, time
from forge.process.lease import hold_lease
config = hold_lease()
nap = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", nap])
with open(config["pids"], "w") as file:
    file.write(f"{{os.getpid()}} {{grandchild.pid}}\\n")
{work}
"""

SUPERVISOR = """
import anyio, sys
from pathlib import Path
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
async def main():
    folder = Path(sys.argv[1])
    spec = ChildSpec(name="kid", argv=(sys.executable, str(folder / "kid.py")), log_path=folder /
    "kid.log",
                     env=child_env(threads=1), socket_path=None, config={"pids": str(folder /
                     "pids")})
    async with open_child(spec):
        await anyio.sleep(600)
anyio.run(main)
"""


class Log:
    """An observer that records its calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, name: str, *, pid: int, devices: str, log_path: Path) -> None:
        self.lines.append(f"{name} on {devices}")

    def ended(self, name: str, *, pid: int, reason: str) -> None:
        self.lines.append(f"{name}: {reason}")


def make_spec(folder: Path, code: str, *, socket_path: Path | None = None, **kwargs) -> ChildSpec:
    program = folder / "kid.py"
    program.write_text(textwrap.dedent(code))
    config = {"word": "kid", "socket": str(socket_path), "pids": str(folder / "pids")}
    return ChildSpec(
        name="kid",
        argv=(sys.executable, str(program)),
        log_path=folder / "logs" / "kid.log",
        env=child_env(threads=1),
        socket_path=socket_path,
        config=config,
        **kwargs,
    )


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def start_supervisor(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "supervisor.py").write_text(SUPERVISOR)
    argv = [sys.executable, str(folder / "supervisor.py"), str(folder)]
    return subprocess.Popen(argv, env=child_env(threads=1))


def is_running(pid: int, *, zombies_too: bool = False) -> bool:
    """A zombie that init has not reaped yet is not running."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return zombies_too or state != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_pids(path: Path, *, timeout_s: float = 20.0) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return [int(word) for word in path.read_text().split()]
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written within {timeout_s} s")


def await_gone(pids: list[int], *, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.02)
    return False


async def test_a_child_is_ready_when_its_health_answers_and_ends_with_exit_0(tmp_path):
    log = Log()
    with open_socket_dir() as folder:
        socket_path = folder / "kid.sock"
        spec = make_spec(tmp_path, SERVER, socket_path=socket_path)
        async with open_child(spec, observer=log) as child:
            assert child.is_alive
            assert child.exit_reason is None
            assert mode_of(socket_path) == mode_of(folder / "kid.json") == 0o600
            async with open_client(socket_path, timeout_s=5) as client:
                assert (await client.get("/health")).json()["word"] == "kid"
        assert not is_running(child.pid, zombies_too=True), "a zombie stays"
        assert child.last_log_lines() == "hello from kid\nserved"
        assert await child.wait() == "exit 0, stopped by forge"
    assert log.lines == ["kid on cpu", "kid: exit 0, stopped by forge"]


FAILING = """
import gc, triton._C.libtriton
from contextlib import asynccontextmanager
@asynccontextmanager
async def fail(app):
    gc.freeze()
    raise ValueError("no such engine")
    yield
serve(Starlette(lifespan=fail), Path(config["socket"]))
"""
"""The end of SERVER. Without `hold_lease`'s precaution nanobind lists what is frozen."""


@pytest.mark.parametrize(
    "code", ["raise SystemExit('no such engine')", SERVER.split("async def")[0] + FAILING]
)
async def test_a_death_at_start_raises_child_died_whose_last_line_is_the_cause(tmp_path, code):
    with open_socket_dir() as folder, pytest.raises(ChildDied) as caught:
        async with open_child(make_spec(tmp_path, code, socket_path=folder / "kid.sock")):
            pass
    assert re.search(r"kid died \d+ s after start while starting: exit \d\.", str(caught.value))
    assert str(caught.value).splitlines()[-1].removeprefix("ValueError: ") == "no such engine"


async def test_a_silent_child_raises_stalled_with_its_name_and_stacks(tmp_path):
    code = "import time\nfrom forge.process.lease import hold_lease\nhold_lease()\ntime.sleep(600)"
    with open_socket_dir() as folder:
        spec = make_spec(tmp_path, code, socket_path=folder / "kid.sock", ready_timeout_s=1.0)
        with pytest.raises(Stalled) as caught:
            async with open_child(spec):
                pass
    assert "kid (pid" in str(caught.value)
    assert "silent for 1 s" in str(caught.value)
    assert "kid.py" in str(caught.value), "the stacks are missing"


async def test_stopping_ends_a_child_and_grandchild_that_ignore_sigterm(tmp_path):
    work = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    spec = make_spec(tmp_path, GRANDPARENT.format(work=work), stop_grace_s=0.5)
    async with open_child(spec) as child:
        pids = await anyio.to_thread.run_sync(await_pids, tmp_path / "pids")
        await anyio.sleep(0.2)
    assert await child.wait() == "killed by forge (did not end within 0.5 s)"
    assert await_gone(pids, timeout_s=5)


async def test_a_grandchild_does_not_outlive_a_child_that_crashes(tmp_path):
    code = GRANDPARENT.format(work="os.kill(os.getpid(), 9)")
    async with open_child(make_spec(tmp_path, code)) as child:
        with anyio.fail_after(20):
            reason = await child.wait()
    assert reason == "killed by signal 9 (often out of memory)"
    assert await_gone(await_pids(tmp_path / "pids"), timeout_s=5)


@pytest.mark.parametrize("work", ["time.sleep(600)", "sum(range(10**12))"], ids=["asleep", "busy"])
def test_children_and_grandchildren_die_within_5_s_of_a_killed_supervisor(tmp_path, work):
    (tmp_path / "kid.py").write_text(GRANDPARENT.format(work=work))
    supervisor = start_supervisor(tmp_path)
    pids = await_pids(tmp_path / "pids")
    assert all(map(is_running, pids))
    supervisor.kill()
    supervisor.wait()
    assert await_gone(pids, timeout_s=5)


def test_a_child_that_still_imports_dies_with_its_supervisor(tmp_path):
    pids_path = str(tmp_path / "pids")
    kid = f"import os, time\nopen({pids_path!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
    kid += "time.sleep(1)\n"
    kid += "from forge.process.lease import hold_lease\nhold_lease()\ntime.sleep(600)"
    (tmp_path / "kid.py").write_text(kid)
    supervisor = start_supervisor(tmp_path)
    pids = await_pids(tmp_path / "pids")
    supervisor.kill()
    supervisor.wait()
    assert await_gone(pids, timeout_s=5)


async def test_ctrl_c_does_not_reach_a_child(tmp_path):
    code = "import os, time\nfrom forge.process.lease import hold_lease\nhold_lease()\n"
    code += "os.kill(os.getpid(), 2)\nprint('still here')"
    async with open_child(make_spec(tmp_path, code)) as child:
        with anyio.fail_after(20):
            await child.wait()
        assert child.last_log_lines() == "still here"


async def test_an_earlier_attempts_log_is_kept_and_not_quoted_in_errors(tmp_path):
    spec = make_spec(tmp_path, "print('second')")
    spec.log_path.parent.mkdir()
    spec.log_path.write_text("first\n")
    async with open_child(spec) as child:
        with anyio.fail_after(20):
            await child.wait()
        assert child.last_log_lines() == "second"
    assert spec.log_path.read_text() == "first\nsecond\n"


async def test_a_missing_program_is_a_machine_error(tmp_path):
    spec = ChildSpec(
        name="kid", argv=("/no/such/python",), log_path=tmp_path / "kid.log", env={},
        socket_path=None, config={},
    )  # fmt: skip
    with pytest.raises(MachineError, match="kid cannot be started: /no/such/python"):
        async with open_child(spec):
            pass
    assert len(os.listdir("/proc/self/fd")) < 50


@pytest.mark.parametrize("name", ["_write_config", "os.pipe"])
def test_a_failed_fork_is_a_machine_error(tmp_path, monkeypatch, name):
    """A judge that ends while the disk is full is restarted later, and its run continues."""

    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"forge.process.child.{name}", refuse)
    spec = ChildSpec(
        name="kid", argv=("true",), log_path=tmp_path / "kid.log", env={}, socket_path=None,
        config={},
    )  # fmt: skip
    with pytest.raises(MachineError, match=r"kid cannot be started: .*No space left"):
        _spawn(spec, observer=None)
