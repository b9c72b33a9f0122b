"""Which level of the sandbox a machine gives, how memory and cores are capped at each, and what is
said where there is none. Machines that forbid something are made of this one.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.children.spawner import Spawner, ZygoteGone
from forge.evalpool.judge.sandbox import caps, enter, landlock, processes
from forge.evalpool.judge.sandbox.enter import Isolation
from tests.evalpool.benches import RELU, RELU_KERNEL

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes another machine of this one")
needs_landlock = pytest.mark.skipif(landlock.abi() < landlock.SCOPE_ABI, reason="no Landlock 6")

FORBIDDING = """
import ctypes, os, sys
from forge.evalpool.judge.sandbox import seccomp as s
lines = [s._line(s.LOAD, s.NUMBER_AT)]
for number in sys.argv[1].split(","):
    lines += [s._line(s.JUMP_EQUAL, int(number), no=1), s._line(s.RETURN, s.EPERM)]
code = b"".join([*lines, s._line(s.RETURN, s.ALLOW)])
program = s._Program(len(code) // 8, code)
libc = ctypes.CDLL(None)
assert libc.prctl(s.PR_SET_SECCOMP, s.SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a command with some system calls forbidden, as Docker's seccomp profile does."""
UNSHARE_AND_MOUNT = "272,165"
LANDLOCK = "444"

FULL_SHM = """
mount -t tmpfs -o size=16k tmpfs /dev/shm
dd if=/dev/zero of=/dev/shm/full bs=4k count=9 2>/dev/null || true
exec "$@"
"""


def forge_judge(folder: Path, *, within: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """`forge judge` of an honest kernel on a machine made by `within`."""
    (folder / "problem.py").write_text(RELU)
    (folder / "answer.py").write_text(RELU_KERNEL)
    judge = [sys.executable, "-m", "forge", "judge", "problem.py", "answer.py", "--json"]
    return subprocess.run(
        [*within, *judge],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def forbidding(numbers: str) -> tuple[str, ...]:
    return (sys.executable, "-c", FORBIDDING, numbers)


@pytest.mark.slow
@needs_root
@needs_landlock
def test_where_namespaces_are_forbidden_an_honest_kernel_is_judged_under_landlock(
    tmp_path: Path,
) -> None:
    done = forge_judge(tmp_path, within=forbidding(UNSHARE_AND_MOUNT))
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["status"], verdict["isolation"]) == ("correct", "landlock")


@pytest.mark.slow
@needs_root
def test_where_nothing_works_the_judge_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    done = forge_judge(tmp_path, within=forbidding(f"{UNSHARE_AND_MOUNT},{LANDLOCK}"))
    assert done.returncode == 3, done.stdout + done.stderr
    said = " ".join(done.stderr.split())
    for words in (
        "namespaces: unshare",
        "landlock: this kernel has no Landlock, or it is forbidden",
        "--cap-add SYS_ADMIN",
        'isolation = "none"',
    ):
        assert words in said
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_root
def test_a_full_dev_shm_hinders_no_judge(tmp_path: Path) -> None:
    done = forge_judge(tmp_path, within=("unshare", "-m", "bash", "-ec", FULL_SHM, "bash"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "correct"


def test_a_level_is_tried_in_the_order_of_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    works = {Isolation.LANDLOCK}
    refusal = lambda level: None if level in works else "no"  # noqa: E731
    monkeypatch.setattr(enter, "why_not", refusal)
    assert enter.strongest("auto") is Isolation.LANDLOCK
    assert enter.find_level("auto") == ("landlock", ["namespaces: no"])
    with pytest.raises(OSError, match="namespaces: no"):
        enter.strongest("namespaces")
    works.add(Isolation.NAMESPACES)
    assert enter.strongest("auto") is Isolation.NAMESPACES
    assert enter.strongest("none") is Isolation.NONE


ATTEMPTING = """
import os, socket, sys
from forge.evalpool.judge.sandbox import linux, proof
linux.drop_capabilities()  # of root, which may read anybody
sock = socket.socket(fileno=int(sys.argv[1]))
if os.fork():
    os.wait()
else:
    proof.try_forbidden(sock)
"""


def attempt(folder: Path) -> list[str]:
    """Attempts that work for the probe outside of any sandbox."""
    ours, theirs = socket.socketpair()
    (folder / "forbidden").write_text("x")
    command = [sys.executable, "-c", ATTEMPTING, str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd=ROOT) as process:
        theirs.close()
        body = {"forbidden": str(folder / "forbidden"), "judge_pid": process.pid}
        frames.send(ours, frames.Kind.CALL, body)
        expected, deadline = (frames.Kind.DONE,), time.monotonic() + 30
        return frames.receive(ours, deadline=deadline, expected=expected).body["works"]


def test_the_probe_finds_every_hole_where_there_is_no_sandbox(tmp_path: Path) -> None:
    works = attempt(tmp_path)
    assert {"reading a file of the judge's", "writing beside it", "a signal to the judge"} <= set(
        works
    )
    assert "reading the judge's environment" in works
    assert "an Internet socket" in works


@contextmanager
def open_spawner(folder: Path, *, python_path: str = str(ROOT), **how: Any) -> Iterator[Spawner]:
    spawner = Spawner(folder=folder, memory_bytes=1 << 30, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path)
        spawner.start()
    try:
        spawner.wait_ready()
        yield spawner
    finally:
        spawner.close()


@needs_landlock
def test_a_landlock_that_does_nothing_is_found_before_a_candidate_enters(tmp_path: Path) -> None:
    """From outside it looks like one that does."""
    code = "import forge.evalpool.judge.sandbox.landlock as l; l.confine_files = lambda rules: None"
    (tmp_path / "sitecustomize.py").write_text(code)
    words = "does not stop .*reading a file of the judge's"
    path = f"{tmp_path}:{ROOT}"
    with (
        pytest.raises(ZygoteGone, match=words),
        open_spawner(tmp_path / "root", isolation="landlock", python_path=path),
    ):
        pass


DAEMON = """
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""


@needs_landlock
@pytest.mark.parametrize("victim", ["zygote", pytest.param("launcher", marks=pytest.mark.long)])
def test_without_a_pid_namespace_a_killed_zygote_takes_its_candidates_daemons_along(
    open_bench_at: Any, tmp_path: Path, victim: str
) -> None:
    with open_bench_at(tmp_path / "root", isolation=Isolation.LANDLOCK) as bench:
        launcher = bench.spawner._process.pid
        child = bench.start(DAEMON)
        zygote = next(row.parent for row in processes.read_table() if row.pid == child.pid_here)
        wait_until(lambda: num_children(zygote) == 2)  # the runner, and the daemon as an orphan
        everybody = tree(launcher)
        os.kill(zygote if victim == "zygote" else launcher, signal.SIGKILL)
        if victim == "launcher":
            bench.spawner.close()  # as the judge does when it sees that
        wait_until(lambda: not any(is_alive(pid) for pid in everybody))
        child.sock.close()


def tree(pid: int) -> set[int]:
    return processes.family(pid, processes.read_table())


def num_children(pid: int) -> int:
    return sum(row.parent == pid for row in processes.read_table())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.02)


HUNGRY = """
import mmap, os, sys, time
if sys.argv[1] == "child" and os.fork() == 0:
    os.setpgid(0, 0)
memory = mmap.mmap(-1, 256 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = 1
time.sleep(60)
"""


@contextmanager
def hungry(who: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HUNGRY, who]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_processes_within_their_limits_that_hold_too_much_together_are_killed() -> None:
    limited = caps.Caps(caps.CapsKind.RLIMIT, memory_bytes=300 << 20)
    with hungry("itself") as alone, hungry("child") as process:
        for one in (alone, process):
            limited.enclose(one.pid)
        assert process.wait(timeout=30) == -signal.SIGKILL
        assert limited.release(process.pid)
        assert alone.poll() is None
        assert not limited.release(alone.pid)


def test_a_process_is_no_other_of_its_pid() -> None:
    """A child that ended with its zygote is released late: its pid may be a stranger's."""
    watch = caps.Caps(caps.CapsKind.WATCH, memory_bytes=1 << 20)
    with hungry("itself") as process:
        with watch._lock:
            watch._enclosed[process.pid] = 0, 1
        wait_until(lambda: not watch._enclosed)
        assert process.poll() is None


@pytest.mark.parametrize("who", ["itself", "child"])
def test_who_holds_too_much_shared_memory_is_killed_by_the_watch(who: str) -> None:
    watch = caps.Caps(caps.CapsKind.WATCH, memory_bytes=128 << 20)
    with hungry(who) as process:
        watch.enclose(process.pid)
        assert process.wait(timeout=30) == -signal.SIGKILL
        watch.release(process.pid)


def test_who_holds_little_is_left_alone_by_the_watch() -> None:
    watch = caps.Caps(caps.CapsKind.WATCH, memory_bytes=1 << 30)
    with hungry("itself") as process:
        watch.enclose(process.pid)
        wait_until(lambda: caps.held_bytes(process.pid) > 256 << 20)
        watch._sample()
        assert process.poll() is None


def test_a_process_may_name_itself_as_it_likes_and_is_watched() -> None:
    naming = "import time; open('/proc/self/comm', 'wb').write(b'\\xff'); print(); time.sleep(60)"
    command = [sys.executable, "-uc", naming]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            assert caps.held_bytes(process.pid) > 1 << 20
        finally:
            process.kill()


def test_the_watch_goes_on_after_a_sample_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = iter(())
    monkeypatch.setattr(processes, "read_table", lambda: next(tables))
    watch = caps.Caps(caps.CapsKind.WATCH, memory_bytes=128 << 20)
    with hungry("itself") as process:
        watch.enclose(process.pid)
        time.sleep(4 * caps.SAMPLE_S)
        monkeypatch.undo()
        assert process.wait(timeout=30) == -signal.SIGKILL
