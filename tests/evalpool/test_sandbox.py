"""Limits that a candidate's Python meets: one promise of the sandbox a test.

Each runs Python inside a real runner, at each level of the sandbox: as root, and (at the end) as an
ordinary user.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.children.spawner import PASSED_ON
from forge.evalpool.judge.sandbox import enter, proof
from forge.evalpool.judge.sandbox.enter import Isolation
from forge.evalpool.judge.sandbox.processes import family, has_ended, read_table
from tests.evalpool.benches import RELU, RELU_KERNEL

pytestmark = pytest.mark.usefixtures("free_host_code")
ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


LEVELS = [Isolation.NAMESPACES, Isolation.LANDLOCK]
SCRATCH = "os.environ['TMPDIR']"


@pytest.fixture(scope="module", params=LEVELS)
def bench(
    request: pytest.FixtureRequest, open_bench_at: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The first level has its installation below /tmp, which a candidate has as its own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if request.param is LEVELS[0]:
            patch.setattr(sys, "executable", str(link_installation(Path(folder))))
        with open_bench_at(tmp_path_factory.mktemp("root"), isolation=request.param) as opened:
            yield opened


def link_installation(folder: Path) -> Path:
    """The interpreter of a virtual environment with the packages of this one."""
    packages = Path(sysconfig.get_paths()["purelib"])
    copied = folder / packages.relative_to(sys.prefix)
    copied.mkdir(parents=True)
    for path in packages.iterdir():
        (copied / path.name).symlink_to(path)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    return python


@pytest.fixture(scope="module")
def level(bench: Any) -> Isolation:
    return bench.spawner.isolation


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that its owner left open to everybody, in a folder that everybody may enter."""
    path = tmp_path_factory.mktemp("home") / "run.db"
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o777)
    path.write_text("s3cr3t")
    path.chmod(0o666)
    return path


def test_an_honest_kernel_is_judged_correct(bench: Any, level: Isolation) -> None:
    verdict = bench.judge_honest()
    assert (verdict.status, verdict.isolation) == ("correct", level)


def test_a_kernel_may_compare_versions(bench: Any) -> None:
    line = 'from packaging import version\nassert version.parse("3.10") > version.parse("3.9")\n'
    assert bench.judge(line + RELU_KERNEL).status == "correct"


def test_a_kernel_imports_what_its_installation_has(bench: Any) -> None:
    code = "from torch._inductor.runtime import triton_helpers\nimport numpy.polynomial\n"
    verdict = bench.judge(code + RELU_KERNEL)
    assert verdict.status == "correct", verdict.detail
    bench.refused("import torch\nopen(torch.__file__, 'a')")


def test_a_kernel_can_be_compiled_to_a_binary(bench: Any) -> None:
    """Which executes ptxas, on a file in the scratch folder."""
    verdict = bench.judge_honest(compile="binary")
    assert verdict.status == "correct", verdict.detail


def test_a_socket_outside_cannot_be_reached(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        bench.refused(f"socket.socket(socket.AF_UNIX).connect({str(path)!r})")


@pytest.mark.parametrize(
    "path",
    [
        str(ROOT / "forge/errors.py"),
        str(ROOT / "pyproject.toml"),
        "/etc/passwd",
        "/root/.bashrc",
        "/usr/bin/env",
        "/sys/kernel/notes",
    ],
)
def test_files_outside_the_allow_list_are_not_there(
    bench: Any, level: Isolation, path: str
) -> None:
    answer = bench.refused(f"open({path!r}).read()")
    is_there = level is Isolation.LANDLOCK and os.path.lexists(path)
    assert ("PermissionError" if is_there else "FileNotFoundError") in answer


@pytest.mark.parametrize(
    "statement",
    [
        "open(PATH).read()",
        "open(PATH, 'w')",
        "os.open(PATH, os.O_RDONLY | os.O_TRUNC)",
        "os.truncate(PATH, 0)",
        "os.unlink(PATH)",
        "os.rename(PATH, PATH + 'x')",
        "os.link(PATH, os.environ['TMPDIR'] + '/work/link')",
        "os.chmod(PATH, 0)",
        "os.utime(PATH)",
        "os.setxattr(PATH, 'user.x', b'1')",
        "os.listdir(os.path.dirname(PATH))",
        "os.symlink(PATH, os.environ['TMPDIR'] + '/s') or open(os.environ['TMPDIR'] + '/s')",
        "os.mkdir(PATH + '.d')",
        "os.execv(PATH, ['x'])",
    ],
)
def test_a_file_of_the_run_can_be_neither_read_nor_changed(
    bench: Any, secret: Path, statement: str
) -> None:
    before = secret.stat()
    bench.refused(statement.replace("PATH", repr(str(secret))))
    assert secret.read_text() == "s3cr3t"
    after = secret.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert list(secret.parent.iterdir()) == [secret]


def test_forge_cannot_be_imported(bench: Any) -> None:
    assert "No module named 'forge'" in bench.refused("import forge")
    assert "ModuleNotFoundError" in bench.refused("import forge.data.generator")
    answer = bench.refused("import transformers")
    assert "ModuleNotFoundError" in answer or "PermissionError" in answer


def test_it_sees_only_its_own_processes(bench: Any, level: Isolation) -> None:
    answer = bench.explore(
        "import os\nraise Answer(sorted(p for p in os.listdir('/proc') if p.isdigit()))"
    )
    is_own = level is Isolation.NAMESPACES
    assert answer.startswith("Answer: ['1']" if is_own else "PermissionError")


def test_no_other_process_can_be_signalled_read_limited_or_traced(bench: Any) -> None:
    sibling = bench.spawner.spawn(role="evaluator")
    launcher = bench.spawner._process.pid
    try:
        for pid in (os.getpid(), launcher, sibling.pid_here):
            bench.refused(f"os.kill({pid}, 0)")
            bench.refused(f"open('/proc/{pid}/environ', 'rb').read()")
            bench.refused(f"open('/proc/{pid}/mem', 'rb').read(1)")
            bench.refused(f"import resource\nresource.prlimit({pid}, resource.RLIMIT_NOFILE)")
            bench.refused(f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)")
            bench.refused(f"ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0 or 1 / 0")
        assert not has_ended(sibling.pid_here), "else its refusals say nothing"
    finally:
        bench.spawner.end(sibling)


def test_nothing_that_it_started_outlives_it(bench: Any) -> None:
    code = """
import os, time
for _ in range(2):
    if os.fork() == 0:  # and its child is an orphan at once
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
raise Answer("started")
"""
    assert bench.explore(code) == "Answer: started"
    bench.references.end_idle()
    bench.trials.sketches.close()
    bench.trials.evaluators.close()
    bench.trials.captures.close()
    launcher = bench.spawner._process.pid
    left = family(launcher, read_table()) - {launcher}
    assert len(left) == 1, "the zygote"


def test_its_files_are_removed(bench: Any, tmp_path: Path) -> None:
    answer = bench.explore(
        "import os\n"
        "open(os.environ['TMPDIR'] + '/work/x', 'w').write('x')\n"
        "raise Answer(os.environ['TMPDIR'])"
    )
    assert not Path(answer.removeprefix("Answer: ") + "/work/x").exists()


def test_the_environment_tells_nothing(bench: Any, level: Isolation) -> None:
    answer = bench.explore("import os\nraise Answer(sorted(os.environ))")
    own = ["HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "TRITON_CACHE_DIR"]
    assert answer == f"Answer: {[*own, 'TRITON_DEFAULT_FP_FUSION', 'USER']}"
    answer = bench.explore(
        "names = [part.split('=')[0] for part in open('/proc/1/environ').read().split(chr(0))]\n"
        "raise Answer(names)"
    )
    if os.geteuid() == 0 or level is Isolation.LANDLOCK:
        assert answer.startswith("PermissionError")
    else:  # what the zygote was started with: thread counts, and where forge was imported from
        assert set(re.findall(r"'(\w+)'", answer)) <= {*PASSED_ON, *THREADS, "PATH"}


@pytest.mark.parametrize(
    "statement",
    [
        "ctypes.CDLL(None, use_errno=True).mount(None, b'/', None, 32 | 4096, None) == 0 or 1 / 0",
        "ctypes.CDLL(None).umount2(b'/proc', 2) == 0 or 1 / 0",
        f"os.mknod({SCRATCH} + '/work/disk', 0o60666, os.makedev(254, 0))",
        f"os.chroot({SCRATCH})",
        "ctypes.CDLL(None).unshare(0x10000000) == 0 or 1 / 0",
        "ctypes.CDLL(None).setns(0, 0) == 0 or 1 / 0",
        "ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 or 1 / 0",
        "ctypes.CDLL(None).syscall(321, 0, 0, 0) >= 0 or 1 / 0",
        "os.setuid(0)",
        "os.setsid()",
        "os.sched_setaffinity(0, range(64))",
        "os.memfd_create('x')",
        "ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 or 1 / 0",
        "open('/dev/vda', 'rb')",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "open('/proc/sysrq-trigger', 'w')",
    ],
)
def test_privileged_calls_are_refused(bench: Any, statement: str) -> None:
    bench.refused(statement)


@pytest.mark.parametrize("folder", ["/", "/usr/lib", "/dev", "/proc", "/var/tmp", str(ROOT)])
def test_only_its_scratch_is_writable(bench: Any, folder: str) -> None:
    bench.refused(f"open({folder!r} + '/x', 'w')")


def test_there_is_no_network(bench: Any) -> None:
    bench.refused("socket.socket(socket.AF_INET, socket.SOCK_STREAM)")
    bench.refused("socket.create_connection(('127.0.0.1', 80), timeout=1)")


def test_a_fork_bomb_is_bounded(bench: Any) -> None:
    code = """
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError:
    pass
raise Answer(n)
"""
    answer = bench.explore(code)
    assert answer.startswith("Answer: ")
    assert int(answer.removeprefix("Answer: ")) < 100


def test_children_that_the_kernel_counts_together_have_room_together() -> None:
    assert enter.max_processes(uid=7, num_siblings=16) == enter.MAX_PROCESSES
    assert enter.max_processes(uid=None, num_siblings=16) == 16 * enter.MAX_PROCESSES


def test_memory_is_bounded(bench: Any) -> None:
    assert "MemoryError" in bench.refused("bytearray(3 << 30)")
    bench.refused("import mmap\nmmap.mmap(-1, 3 << 30)")
    bench.refused("ctypes.CDLL(None).syscall(319, b'x', 0) >= 0 or 1 / 0")


def test_files_are_bounded(bench: Any) -> None:
    big = "open({} + '/big', 'wb').write(bytes(80 << 20))"
    assert "OSError" in bench.refused(big.format(f"{SCRATCH} + '/work'"))
    answer = bench.refused(big.format("'/dev/shm'"))
    assert "OSError" in answer or "PermissionError" in answer


def test_what_it_prints_goes_nowhere(bench: Any, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os\nfor _ in range(64): os.write(1, bytes(1 << 20))\nraise Answer('printed')"
    assert bench.explore(code) == "Answer: printed"
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("number", [1, 2])
def test_what_a_reference_prints_goes_to_dev_null(bench: Any, number: int) -> None:
    checked = f"import os\nassert os.fstat({number}).st_rdev == os.makedev(1, 3)\n"
    verdict = bench.judge(RELU_KERNEL, problem=checked + RELU)
    assert verdict.is_correct, verdict.detail


def test_a_torch_op_works_inside(bench: Any) -> None:
    answer = bench.explore(
        "import torch\nraise Answer((torch.ones(64, 64) @ torch.ones(64, 64)).sum().item())"
    )
    assert answer == "Answer: 262144.0"


def test_the_judge_refuses_a_weak_sandbox() -> None:
    with pytest.raises(proof.WeakSandbox):
        proof.check_sandbox(
            os.getpid(), isolation=Isolation.NAMESPACES, uid=None, mounts=frozenset()
        )


AS_NOBODY = """
set -e
mount --bind "$HOME" "$STASH"
mount -t tmpfs -o mode=755 tmpfs "$HOME"
for path in $KEPT; do mkdir -p "$HOME/$path"; mount --bind "$STASH/$path" "$HOME/$path"; done
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all "$@"
"""
"""An ordinary user sees what the tests need of a home that only its owner may enter."""


@pytest.mark.parametrize(
    ("uid", "sysctls", "words"),
    [
        (0, {"user.max_user_namespaces": "0"}, "--cap-add SYS_ADMIN"),
        (7, {"user.max_user_namespaces": "0"}, "sysctl -w user.max_user_namespaces="),
        (7, {"kernel.unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone=1"),
        (
            7,
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (7, {"user.max_user_namespaces": "9", "kernel.unprivileged_userns_clone": "1"}, "seccomp"),
    ],
)
def test_a_machine_without_namespaces_is_told_what_forbids_them(
    uid: int, sysctls: dict[str, str], words: str
) -> None:
    assert words in enter.advice(uid=uid, sysctls=sysctls)
    assert set(enter.read_sysctls()) <= set(enter.SYSCTLS)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="shows an ordinary user's case from root")
def test_an_ordinary_user_gets_the_same_by_user_namespaces(tmp_path: Path) -> None:
    """The same promises without root: this file again, as nobody; and `isolation = "none"`."""
    home = Path.home()
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    kept = [str(path.relative_to(home)) for path in needed if path.is_relative_to(home)]
    options = ["-q", "-p", "no:cacheprovider", "-k", "not bomb and not landlock"]
    none = "test_a_judge_without_isolation_works_if_the_config_allows_it"
    files = [__file__, f"{Path(__file__).with_name('test_pool_served.py')}::{none}"]
    test = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", AS_NOBODY, "bash", *test],
        cwd=ROOT,
        env={**os.environ, "STASH": str(tmp_path), "KEPT": " ".join(kept)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
