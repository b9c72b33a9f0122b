# pyright: strict
"""The judge's compiler: kernels in, binaries out, each compiled in a sandboxed child of its own.

    threads ─▶ cache? ─▶ words of the text ─▶ child (zygote's fork) ─▶ fields ─▶ cache

Promise: the fields of what is returned were checked here, whatever the child became; a kernel that
crashes the compiler is that kernel's `compile_error`. Equal kernels that are asked for at the same
time are compiled once. Imports neither torch nor Triton.

The cache is on disk below `~/.cache/forge/kernels`. Its key is the SHA-256 of everything that a
binary depends on, so an entry is never wrong for its key. Only the judge writes: candidates and
compiler children see no path. A file holds the hash of its own content; one that was damaged, or
written by another version, counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner, ZygoteGone
from forge.evalpool.judge.compiler.binary import (
    MAX_CODE_BYTES,
    SHARED_BYTES,
    Binary,
    Failure,
    FailureKind,
    over_limit,
    over_limits,
    parse_binary,
)
from forge.evalpool.judge.compiler.text import Refused, check_text, may_exceed, source_line
from forge.evalpool.judge.program.format import Kernel
from forge.evalpool.judge.program.readers import InvalidProgram
from forge.evalpool.judge.sandbox import proof
from forge.process.child import describe_exit

logger = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""For one kernel: the slowest honest one seen takes 9 s on a busy core."""
BUDGET_S = 180.0
"""For all kernels of one call: 500 configurations of a small kernel on 16 cores take 10 s."""
Result: TypeAlias = "Binary | Failure | None"
"""Result of a job; None for tiles that fit."""
MAX_KNOWN = 10_000
MAX_MESSAGE_CHARACTERS = 2000
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be compiled, or whose bytes of shared memory are asked for."""

    kernel: Kernel
    target: str
    key: str
    is_rewritten: bool
    """True for a text of the judge's own, which need not be as MLIR prints it."""
    needs_shared_alone: bool


class Compiler:
    """Compiles kernels for the judge. Safe to use from several threads."""

    def __init__(self, spawner: Spawner, *, cache: Cache) -> None:
        self._spawner = spawner
        self._cache = cache
        count = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="compile")
        self._lock = threading.Lock()
        self._known: dict[str, Future[Any]] = {}
        """Work that goes on, kernels that failed, and those whose tiles fit, by key."""

    def close(self) -> None:
        """Waits for children that compile, and ends the threads."""
        self._pool.shutdown(cancel_futures=True)

    def compile(
        self,
        kernels: Sequence[Kernel],
        target: str,
        *,
        budget_s: float = BUDGET_S,
        is_rewritten: bool = False,
    ) -> list[Binary | Failure]:
        """Compiles kernels side by side.

        Args:
            target: Triton's, such as `cuda:90:32` or `hip:gfx942:64`.
            is_rewritten: the judge has made the texts from others, which are compiled, too: these
                need not be as MLIR prints them.
            budget_s: for all of them; kernels that are not done then are failures, and the cache
                has them a little later.

        Returns:
            One result for each kernel, in order.
        """
        end = time.monotonic() + budget_s
        futures = [self._submit(one, target, is_rewritten=is_rewritten) for one in kernels]
        results: list[Binary | Failure] = []
        for future, kernel in zip(futures, kernels, strict=True):
            try:
                found = future.result(timeout=max(0.0, end - time.monotonic()))
            except TimeoutError:
                message = f"{len(kernels)} kernels are not compiled within {budget_s:g} s"
                found = Failure(message=message)
            # Equal kernels share a result, and stand on lines of their own.
            if isinstance(found, Failure) and found.text_line:
                line = source_line(kernel.ttir, kernel.lines, found.text_line)
                found = replace(found, line=line)
            results.append(found)
        return results

    def begin(self, kernels: Sequence[Kernel], target: str, *, is_rewritten: bool = False) -> None:
        """Begins to compile kernels that may be asked for soon."""
        for kernel in kernels:
            self._submit(kernel, target, is_rewritten=is_rewritten)

    def too_large(self, kernels: Sequence[Kernel], target: str) -> list[Failure | None]:
        """Finds the kernels whose tiles need more shared memory than the target has.
        Kernels whose tiles surely fit are not compiled, others until it is known."""
        limit = SHARED_BYTES.get(target.rpartition(":")[0])
        if limit is None:
            return [None] * len(kernels)
        asked = [
            self._submit(one, target, needs_shared_alone=True) if may_exceed(one, limit) else None
            for one in kernels
        ]
        found = [None if one is None else one.result() for one in asked]
        # One that Triton refuses may be right: the binary's compilation says so, if asked for.
        kind = FailureKind.OUT_OF_RESOURCES
        return [one if isinstance(one, Failure) and one.kind is kind else None for one in found]

    def _submit(
        self,
        kernel: Kernel,
        target: str,
        *,
        is_rewritten: bool = False,
        needs_shared_alone: bool = False,
    ) -> Future[Any]:
        """The result of a job, which begins unless it is known."""
        version = self._spawner.versions.get("triton", "")
        version += ", rewritten" * is_rewritten + ", shared" * needs_shared_alone
        key = key_of(kernel, target=target, version=version)
        job = Job(kernel, target, key, is_rewritten, needs_shared_alone)
        with self._lock:
            if job.key in self._known:
                return self._known[job.key]
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            future = self._known[job.key] = Future[Any]()
        if (kept := self._cache.get(job.key)) is not None:
            self._settle(job, future, kept)
        else:
            self._pool.submit(self._work, job, future)
        return future

    def _work(self, job: Job, future: Future[Any]) -> None:
        try:
            self._settle(job, future, self._make(job))
        except BaseException as error:
            self._known.pop(job.key, None)
            future.set_exception(error)
            raise

    def _settle(self, job: Job, future: Future[Any], result: Result) -> None:
        """Forgets binaries, which the cache has, and faults of the judge."""
        is_fault = isinstance(result, Failure) and result.kind is FailureKind.INFRA
        if isinstance(result, Binary) or is_fault:
            self._known.pop(job.key, None)
        future.set_result(result)

    def _make(self, job: Job) -> Result:
        try:
            check_text(job.kernel.ttir)
        except Refused as error:
            return Failure(message=str(error), text_line=error.text_line)
        try:
            child = self._spawner.spawn(role="compiler")
            result = self._ask(child, job)
        except (ZygoteGone, proof.WeakSandbox) as error:
            return Failure(kind=FailureKind.INFRA, message=str(error))
        if isinstance(result, Binary):
            self._cache.put(result)
        return result

    def _ask(self, child: SandboxedChild, job: Job) -> Result:
        text = job.kernel.ttir.encode("ascii")
        code_at = -(-len(text) // _PAGE) * _PAGE
        request = {
            "name": job.kernel.name,
            "options": asdict(job.kernel.options),
            "parameters": [[one.name, one.type] for one in job.kernel.parameters],
            "target": job.target,
            "key": job.key,
            "text_bytes": len(text),
            "code_at": code_at,
            "num_bytes": code_at + MAX_CODE_BYTES,
            "needs_shared_alone": job.needs_shared_alone,
            "is_rewritten": job.is_rewritten,
        }
        has_hung_up, message = False, ""
        try:
            with shared_memory(code_at + MAX_CODE_BYTES) as (fd, memory):
                memory[: len(text)] = text
                deadline = time.monotonic() + DEADLINE_S
                frames.send(child.sock, Kind.CALL, request, fds=(fd,))
                answer = frames.receive(
                    child.sock, deadline=deadline, expected=(Kind.DONE, Kind.FAILED)
                )
                if answer.kind is Kind.FAILED:
                    return _failure(answer.body)
                if job.needs_shared_alone:
                    return _excess(answer.body, job)
                return _binary(answer.body, memory[code_at:], job)
        except frames.DeadlinePassed:
            message = f"not compiled within {DEADLINE_S:g} s"
        except frames.PeerGone:
            has_hung_up = True
        except (frames.FrameError, InvalidProgram) as error:
            message = f"the compiler's output is unusable: {error}"
        finally:
            if not has_hung_up:
                self._spawner.end(child)
        if has_hung_up:
            ending = self._spawner.ended(child)
            code = os.waitstatus_to_exitcode(ending.status)  # negative: the signal
            how = "it needs more memory than a child has" if ending.is_out_of_memory else ""
            message = f"the compiler crashed: {how or describe_exit(code)}"
        return Failure(message=message)


def _excess(body: dict[str, Any], job: Job) -> Failure | None:
    """The failure of tiles that need more shared memory than there is, by a child's answer. Raises
    InvalidProgram."""
    size, limit = body.get("shared_bytes"), SHARED_BYTES[job.target.rpartition(":")[0]]
    if type(size) is not int or size < 0:
        raise InvalidProgram("no bytes of shared memory")
    if size <= limit:
        return None
    message = over_limit("shared memory", size, limit)
    return Failure(kind=FailureKind.OUT_OF_RESOURCES, message=message)


def _binary(body: dict[str, Any], room: bytes, job: Job) -> Binary | Failure:
    """The child's answer, checked. Raises InvalidProgram."""
    size, header = body.get("code_bytes"), body.get("header")
    if type(size) is not int or not 0 <= size <= len(room) or not isinstance(header, dict):
        raise InvalidProgram("no header, or no size")
    binary = parse_binary(cast("dict[str, Any]", header), room[:size])
    if (binary.key, binary.target, binary.name) != (job.key, job.target, job.kernel.name):
        raise InvalidProgram(f"{binary.name} for {binary.target}, expected {job.kernel.name}")
    message = over_limits(binary)
    return Failure(kind=FailureKind.OUT_OF_RESOURCES, message=message) if message else binary


def _failure(body: dict[str, Any]) -> Failure:
    """A child's failure, of which anything may be missing."""
    line = body.get("text_line")
    return Failure(
        message=str(body.get("message"))[:MAX_MESSAGE_CHARACTERS],
        text_line=line if type(line) is int and line > 0 else 0,
    )


FORMAT = 4
"""Version of key and file: raised when `Binary`, the closed list or a stage's options change."""
MAX_DISK_BYTES = 2 << 30
"""About 50,000 kernels."""
KEPT_SHARE = 0.8
"""Share of the bound that remains when the oldest files are removed."""
_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Follows $XDG_CACHE_HOME, as the measured baselines do."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "forge" / "kernels"


def key_of(kernel: Kernel, *, target: str, version: str) -> str:
    """Returns 64 hexadecimal digits. `version` is the compiler's."""
    parts = {
        "format": FORMAT,
        "version": version,
        "target": target,
        "name": kernel.name,
        "options": asdict(kernel.options),
        "parameters": [one.type for one in kernel.parameters],
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode() + b"\0")
    digest.update(kernel.ttir.encode())
    return digest.hexdigest()


class Cache:
    """Binaries by key. Safe to use from several threads, and from several judges on one folder."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: made if missing; None for one that ends with this object, as where it is not
        ours alone."""
        if folder is None or not _is_own(folder):
            folder = Path(tempfile.mkdtemp(prefix="forge-kernels-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = folder
        self._disk_bytes = sum(size for _, size, _ in self._files())

    def get(self, key: str) -> Binary | None:
        """The binary of a key, which becomes the youngest."""
        path = self._path(key)
        try:
            binary = _unpack(path.read_bytes())
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, InvalidProgram) as error:
            logger.warning("the kernel cache's file %s is unusable: %s", path, error)
            return None
        return binary if binary.key == key else None

    def put(self, binary: Binary) -> None:
        """Keeps a binary that the judge has checked. A disk that refuses is logged, no error."""
        header = json.dumps(binary.header()).encode()
        body = _LENGTH.pack(len(header)) + header + binary.code
        try:
            data = hashlib.sha256(body).digest() + body
            self._disk_bytes += _write(self._path(binary.key), data)
        except OSError as error:
            logger.warning("the kernel cache cannot be written: %s", error)
            return
        if self._disk_bytes > MAX_DISK_BYTES:
            self._remove_oldest()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key[2:]

    def _files(self) -> list[tuple[float, int, Path]]:
        """Age, size and path of each entry, oldest first."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # another judge removed it
            found.append((status.st_mtime, status.st_size, path))
        return sorted(found)

    def _remove_oldest(self) -> None:
        files = self._files()
        left = sum(size for _, size, _ in files)
        for _, size, path in files:
            if left <= MAX_DISK_BYTES * KEPT_SHARE:
                break
            path.unlink(missing_ok=True)
            left -= size
        self._disk_bytes = left


def _is_own(folder: Path) -> bool:
    """True for a folder of ours that no other user can write to; made if missing. Warns else."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError as error:
        logger.warning("no kernel cache at %s: %s", folder, error)
        return False
    reason = "" if os.access(folder, os.W_OK) else "it cannot be written"
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "others can write to it"
    if reason:
        logger.warning("no kernel cache at %s: %s", folder, reason)
    return not reason


def _unpack(data: bytes) -> Binary:
    """Raises InvalidProgram."""
    body = memoryview(data)[_DIGEST_BYTES:]
    if len(body) < _LENGTH.size or hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise InvalidProgram("its hash is not that of its content")
    (length,) = _LENGTH.unpack_from(body)
    try:
        header = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    except ValueError as error:
        raise InvalidProgram("its header is no JSON") from error
    return parse_binary(header, bytes(body[_LENGTH.size + length :]))


def _write(path: Path, data: bytes) -> int:
    """Writes a file that is complete or absent, and returns its bytes."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent.parent, prefix="new-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return len(data)
