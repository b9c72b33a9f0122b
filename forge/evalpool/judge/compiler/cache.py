# pyright: strict
"""Compiled kernels by content, on disk below `~/.cache/forge/kernels`.

The key is the SHA-256 of everything that a binary depends on, so an entry is never wrong for its
key. Only the judge writes: candidates and compiler children see no path. A file holds the hash of
its own content; one that was damaged, or written by another version, counts as absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import stat
import struct
import tempfile
import weakref
from pathlib import Path

from forge.evalpool.judge.compiler.binary import Binary, InvalidBinary, parse_binary
from forge.evalpool.judge.program.format import Kernel

logger = logging.getLogger(__name__)

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
        "options": dataclasses.asdict(kernel.options),
        "parameters": [one.type for one in kernel.parameters],
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode() + b"\0")
    digest.update(kernel.ttir.encode())
    return digest.hexdigest()


class Cache:
    """Binaries by key. Safe to use from several threads, and from several judges on one folder."""

    def __init__(self, folder: Path | None, *, max_disk_bytes: int = MAX_DISK_BYTES) -> None:
        """
        Args:
            folder: made if missing; None for one that ends with this object, as where it is not
                ours alone.
        """
        if folder is None or not _is_own(folder):
            folder = Path(tempfile.mkdtemp(prefix="forge-kernels-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._folder = folder
        self._max_disk_bytes = max_disk_bytes
        self._disk_bytes = sum(size for _, size, _ in self._files())

    def get(self, key: str) -> Binary | None:
        """The binary of a key, which becomes the youngest."""
        path = self._path(key)
        try:
            binary = _unpack(path.read_bytes())
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, InvalidBinary) as error:
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
        if self._disk_bytes > self._max_disk_bytes:
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
            if left <= self._max_disk_bytes * KEPT_SHARE:
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
    """Raises InvalidBinary."""
    body = memoryview(data)[_DIGEST_BYTES:]
    if len(body) < _LENGTH.size or hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise InvalidBinary("its hash is not that of its content")
    (length,) = _LENGTH.unpack_from(body)
    try:
        header = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    except ValueError as error:
        raise InvalidBinary("its header is no JSON") from error
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
