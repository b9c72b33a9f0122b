"""The zygote: a sandboxed process that has imported torch and triton and only forks children.

Spawned by the judge (`python -m … FD CONFIG`), at first as its launcher: a process that enters a
pid namespace stays outside of it, and its child, the zygote, is the first inside; the launcher ends
with it and all that it started. Promise: the zygote has run no torch op, started no thread, and
holds no seed, no reference, no candidate. A child is forked in a pid namespace of its own, enters
its sandbox (`enter.py`) and says HELLO; only then does the judge look at it and send it work.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from forge.evalpool.judge.channel import frames, heap
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.sandbox import enter, linux, processes, proof, root
from forge.evalpool.judge.sandbox.enter import Isolation, Surroundings
from forge.process.lease import collector_paused

SIGNALLED = 128
"""Added to the number of the signal that ended the zygote, as a shell does."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Error numbers for exhausted resources, in contrast to forbidden calls."""
NEEDED = ("torch", "triton")
CARD_NODES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
CANDIDATE_ROLES = frozenset({"capture", "plain"})
"""Roles of the children in which candidates' Python runs. Their main functions also take `file`, a
path for the candidate's source. A zygote whose children have the card's files has none of them."""


@dataclass(slots=True, kw_only=True)
class Zygote:
    """Forks children. Has the facts that each of them needs."""

    sock: socket.socket
    around: Surroundings
    mains: Mapping[str, Callable[..., None]]
    folder: str
    """Parent of children's scratch folders, without a mount namespace."""
    card_files: tuple[int, ...] = ()
    """Descriptors of a card that no child may have."""
    scratch: dict[int, str] = field(default_factory=dict)
    """Scratch folder of each living child, by pid."""
    own_modules: tuple[str, ...] = field(
        default_factory=lambda: tuple(n for n in sys.modules if f"{n}.".startswith("forge."))
    )
    """Names of forge's modules. To look for them in each child writes the reference count of every
    module's name: 1,300 pages that it shares with the zygote."""

    def serve(self) -> None:
        """Forks and reaps on request, until the judge hangs up."""
        while True:
            request = frames.asked(self.sock, Kind.SPAWN, Kind.REAP, takes_fds=True)
            if request.kind is Kind.SPAWN:
                frames.send(self.sock, Kind.SPAWNED, {"pid": self._spawn(request)})
            else:
                frames.send(self.sock, Kind.REAPED, {"status": self._reap(request.body["pid"])})

    def _spawn(self, request: frames.Frame) -> int:
        fd = request.fds[0]
        namespace = self.around.own_pid_namespace
        scratch = root.SCRATCH if namespace is not None else tempfile.mkdtemp(dir=self.folder)
        if namespace is not None:
            linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            sock = socket.socket(fileno=fd)  # open to the end: closing it reports the end
            try:
                self.sock.close()
                with reporting_refusals(sock):
                    self._enter(request.body, scratch)
                self._be_child(request.body["role"], sock, scratch)
            except frames.PeerGone:
                os._exit(0)  # the judge closed its end
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        if namespace is not None:
            linux.setns(namespace, kind=linux.CLONE_NEWPID)
        os.close(fd)
        self.scratch[pid] = scratch
        return pid

    def _reap(self, pid: int) -> int | None:
        """Kills a child with all in its namespace or group; its wait status, None if unknown."""
        scratch = self.scratch.pop(pid, None)
        if scratch is None:
            return None
        if self.around.own_pid_namespace is None:
            status = processes.end_group(pid)
            shutil.rmtree(scratch, ignore_errors=True)
            return status
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]

    def end(self) -> None:
        """Ends the children that a pid namespace would end."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends already
        if self.around.own_pid_namespace is None:
            for pid in list(self.scratch):
                self._reap(pid)

    def _enter(self, body: dict[str, Any], scratch: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tempfile.tempdir = None  # it may be the zygote's own
        for fd in self.card_files:
            os.close(fd)
        if self.around.own_pid_namespace is not None:
            os.close(self.around.own_pid_namespace)
        gc.disable()
        home_files = body.pop("home_files")
        enter.enter_child_sandbox(self.around, scratch=scratch, **body)
        for name, text in home_files.items():
            path = Path(os.environ["HOME"], name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def _be_child(self, role: str, sock: socket.socket, scratch: str) -> None:
        if role != "probe":  # results travel in frames and memory
            fd = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(fd, number)
            os.close(fd)
        frames.send(sock, Kind.HELLO, {})
        main = self.mains[role]
        if role not in CANDIDATE_ROLES:
            main(sock)
            return
        for name in self.own_modules:  # `import forge` fails: its source is not visible, either
            del sys.modules[name]
        sys.modules["__main__"] = type(sys)("__main__")
        sock.settimeout(None)
        main(sock, file=f"{scratch}/work/candidate.py")


def main() -> None:
    """Becomes the launcher; its child becomes the zygote."""
    fd, config = int(sys.argv[1]), json.loads(sys.argv[2])
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != config["judge_pid"]:
        return
    sock = socket.socket(fileno=fd)
    try:
        _launch(sock, config)
    except Exception as error:
        # The traceback is last in the log: nanobind would list below it what the warm-up keeps.
        traceback.print_exc()
        with suppress(OSError, frames.PeerGone, frames.DeadlinePassed):  # the judge may have gone
            frames.send(sock, Kind.FAILED, {"message": _one_line(error)})
        os._exit(1)


def _launch(sock: socket.socket, config: dict[str, Any]) -> None:
    is_gpu = config["device"] != "cpu"
    files = root.find_gpu_files(minor=config["gpu_minor"]) if is_gpu else None
    plan = root.plan_root(files, site_packages=config["site_packages"])
    with reporting_refusals(sock):
        isolation = enter.strongest(config["isolation"], is_gpu=is_gpu)
        if isolation.has_namespaces:
            enter.enter_zygote_namespaces()
    if not isolation.has_namespaces:
        _become_subreaper()
    pid = os.fork()
    if pid:
        sock.close()
        _await_zygote(pid)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not isolation.has_namespaces:
        _become_subreaper()
    _be_zygote(sock, config, isolation=isolation, plan=plan, is_gpu=is_gpu)


def _become_subreaper() -> None:
    """Without a pid namespace, adopts the orphans of children, and survives a kill of the judge's
    process group long enough to end them."""
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_zygote(pid: int) -> NoReturn:
    """Waits in the launcher for the zygote's end, and exits with its code."""
    code = 0
    try:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        code = SIGNALLED - code if code < 0 else code
    except SystemExit:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    finally:
        processes.end_children()
    sys.exit(code)


def _be_zygote(
    sock: socket.socket,
    config: dict[str, Any],
    *,
    isolation: Isolation,
    plan: root.RootPlan,
    is_gpu: bool,
) -> None:
    """Runs a zygote until its end, in a process of its own in its namespaces. One of a harvest has
    children for `problems` or `answers`, too."""
    folder = config["folder"]
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # as in children
    environment = dict(enter.CHILD_ENVIRONMENT)
    if is_gpu:
        environment |= root.child_environment()
    try:
        with collector_paused():
            mains = _import_for_gpu() if is_gpu else _import_for_cpu(config["harvests"])
            if config["harvests"]:
                from forge.evalpool.judge.numbers import called

                called.seeds = Random(0)
    except Exception as error:  # a fault of the installation
        installed = {one.name: one.version for one in metadata.distributions()}
        found = (f"{name} {installed.get(name, '(not installed)')}" for name in NEEDED)
        message = f"{', '.join(found)}: {_one_line(error)}"
        frames.send(sock, Kind.FAILED, {"message": message, "kind": "installation"})
        raise
    gc.collect()
    mapped_bytes = heap.mapped_bytes()
    # torch's fake tensors may have asked a CUDA driver for its devices, which starts a thread that
    # no child needs.
    has_asked = not is_gpu and "/libcuda.so" in Path("/proc/self/maps").read_text()
    num_threads = len(os.listdir("/proc/self/task")) - has_asked
    card_files = () if is_gpu else find_card_files()
    namespace, proc = None, os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    if isolation.has_namespaces:
        namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        with reporting_refusals(sock):
            enter.enter_root(plan, at=folder)
        root.follow_packages(plan)
    if isolation is not Isolation.NONE:
        sys.path[:] = root.sandbox_sys_path(plan)
        sys.path_importer_cache.clear()
    gc.freeze()  # children write no reference counts of the collector into shared pages
    around = Surroundings(
        isolation=isolation, plan=plan, mapped_bytes=mapped_bytes, environment=environment,
        is_gpu=is_gpu, own_pid_namespace=namespace, proc=proc,
    )  # fmt: skip
    zygote = Zygote(sock=sock, around=around, mains=mains, folder=folder, card_files=card_files)
    if num_threads > 1:
        raise RuntimeError(f"the zygote has {num_threads} threads; a fork would copy only one")
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__}
    frames.send(sock, Kind.READY, {"isolation": isolation, **versions})
    try:
        try:
            zygote.serve()
        finally:
            zygote.end()
    except (frames.PeerGone, SystemExit):
        os._exit(0)  # at a regular end, libraries print errors


@contextmanager
def reporting_refusals(sock: socket.socket) -> Iterator[None]:
    """Reports an error in the body to the judge: the step into the sandbox that was refused."""
    try:
        yield
    except (OSError, MemoryError, enter.LimitTooLow) as error:
        is_refused = isinstance(error, OSError) and error.errno not in EXHAUSTED
        kind = "sandbox" if is_refused else "limit"
        frames.send(sock, Kind.FAILED, {"message": str(error) or repr(error), "kind": kind})
        raise


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def find_card_files() -> tuple[int, ...]:
    """Descriptors of a card's nodes that are open here: a driver that was asked keeps them."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            if os.readlink(f"/proc/self/fd/{name}").startswith(CARD_NODES):
                found.append(int(name))
    return tuple(found)


def _import_for_cpu(harvests: str) -> dict[str, Callable[..., None]]:
    """Imports everything that a child of a machine without GPUs uses; no child pays for it."""
    import torch

    torch.set_num_threads(1)
    from forge.evalpool.judge.capture import capture_child
    from forge.evalpool.judge.compiler import child as compiler
    from forge.evalpool.judge.execute import child_cpu
    from forge.evalpool.judge.reference import examine, oracle

    mains = {
        "capture": capture_child.main,
        "plain": capture_child.serve_plain,
        "compiler": compiler.main,
        "evaluator": child_cpu.main,
        "examiner": examine.main,
        "oracle": oracle.main,
        "probe": proof.try_forbidden,
    }
    if harvests:
        from forge.evalpool.judge.harvest import child as harvester

        mains["harvester"] = harvester.main
        if harvests == "answers":
            harvester.load_answerer()
    capture_child.warm_up()
    child_cpu.warm_up()
    return mains


def _import_for_gpu() -> dict[str, Callable[..., None]]:
    """Imports what a child with the GPU's files uses. No context: no fork could use it."""
    import torch
    from triton.backends import backends
    from triton.runtime import driver

    torch.set_num_threads(1)
    from forge.evalpool.judge.driver import gpu_memory
    from forge.evalpool.judge.reference import examine, oracle
    from forge.evalpool.judge.timing import baseline_child

    for name in ("numpy.fft", "numpy.linalg", "numpy.random"):
        importlib.import_module(name)  # for torch.compile: numpy's files may be out of its sight
    _ = gpu_memory  # an oracle asks for it by name, where forge's files are out of sight
    if not torch.version.hip:
        # Triton's launcher is compiled here: for a baseline under torch.compile, whose sandbox
        # shows no ldconfig.
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TRITON_CACHE_DIR"] = cache
            driver.set_active(backends["nvidia"].driver())

    return {
        "baseline": baseline_child.main,
        "examiner": examine.main,
        "oracle": oracle.main,
        "probe": proof.try_forbidden,
    }


if __name__ == "__main__":
    os.chdir("/")
    Path("/proc/self/oom_score_adj").write_text("500")
    main()
