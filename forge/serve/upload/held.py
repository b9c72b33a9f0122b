# pyright: strict
"""The files that a server was sent, by content, and the directories made of them.

Owned by `endpoints`. Every function here blocks: call it in a thread. Promises: a file is complete
and has its digest, or is not there; an interrupted upload continues at the byte it had reached; of
two writers of one file the last one to ask writes; no upload fills the disk.

    blobs/<sha256>         whole files       blobs/<sha256>.part   partial ones
    weights/<n>-v<version>/<name>            links to whole files: what an engine loads
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from forge.serve.upload.manifest import Manifest, WeightFile

RESERVE_BYTES = 1 << 30
"""Free bytes that no upload may take."""


class LostPlace(ConfigError):
    """A write at another byte than the next one, or by a writer that was replaced."""


@dataclass(slots=True, kw_only=True, eq=False)
class Upload:
    """One file on its way."""

    path: Path
    digest: Any = field(default_factory=hashlib.sha256)
    received: int = 0
    writer: int = 0
    """Number of the writer that may write."""


class HeldFiles:
    """The folder of one server process."""

    def __init__(
        self,
        folder: Path,
        *,
        free_bytes: Callable[[Path], int] = lambda p: shutil.disk_usage(p).free,
    ) -> None:
        self._blobs, self._weights = folder / "blobs", folder / "weights"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._weights.mkdir(exist_ok=True)
        self._free_bytes = free_bytes
        self._elsewhere: dict[str, Path] = {}
        self._uploads: dict[str, Upload] = {}
        self._num_made = 0
        self._lock = threading.Lock()

    def know(self, directory: Path, manifest: Manifest) -> None:
        """Files of a directory that is here anyway, which nobody has to send."""
        with self._lock:
            self._elsewhere |= {file.sha256: directory / file.name for file in manifest}

    def missing(self, manifest: Manifest) -> dict[str, int]:
        """Digests of the files that are not here, with the bytes of each that have arrived. Earlier
        writers of these files may no longer write. Raises MachineError if the disk is too full."""
        with self._lock:
            wanted = {file.sha256: file for file in manifest if self._find(file) is None}
            for digest in wanted:
                if digest in self._uploads:
                    self._uploads[digest].writer += 1
            received = {
                digest: self._uploads[digest].received if digest in self._uploads else 0
                for digest in wanted
            }
            needed = sum(file.num_bytes for file in wanted.values()) - sum(received.values())
            free = self._free_bytes(self._blobs) - RESERVE_BYTES
        if needed > max(free, 0):
            raise MachineError(
                f"disk full: the upload needs {needed / 1e9:.2f} GB in {self._blobs}, "
                f"{max(free, 0) / 1e9:.2f} GB are available"
            )
        return received

    def begin(self, digest: str, *, offset: int) -> tuple[Upload, int]:
        """An upload from byte `offset`, and the number of its writer. Raises LostPlace."""
        with self._lock:
            upload = self._uploads.get(digest)
            if upload is None:
                path = self._blobs / f"{digest}.part"
                upload = self._uploads[digest] = Upload(path=path)
                path.write_bytes(b"")
            if upload.received != offset:
                raise LostPlace(f"{digest[:12]}: found byte {offset}; next is {upload.received}")
            upload.writer += 1
            return upload, upload.writer

    def write(self, upload: Upload, data: bytes, *, writer: int) -> None:
        """The next bytes. Raises LostPlace, or MachineError if they cannot be written: what had
        arrived stays."""
        with self._lock:
            if upload.writer != writer:
                raise LostPlace("another connection continues this file")
            try:
                with upload.path.open("r+b") as file:
                    file.seek(upload.received)  # over what an earlier write left, half done
                    file.write(data)
            except OSError as error:
                raise MachineError(f"{upload.path.parent}: {error.strerror or error}") from error
            upload.digest.update(data)
            upload.received += len(data)

    def finish(self, digest: str, upload: Upload, *, writer: int, num_bytes: int) -> bool:
        """True if the file is whole and here now; False while bytes are missing. Raises ConfigError
        for other content, which is dropped: it has to be sent again."""
        with self._lock:
            if upload.writer != writer or upload.received < num_bytes:
                return False
            del self._uploads[digest]
            if upload.received != num_bytes or upload.digest.hexdigest() != digest:
                upload.path.unlink(missing_ok=True)
                raise ConfigError(f"{digest[:12]}: the bytes that arrived have another digest")
            upload.path.rename(self._blobs / digest)
            return True

    def assemble(self, manifest: Manifest, *, version: int) -> Path:
        """A directory with these files. Raises ConfigError if one is not here."""
        with self._lock:
            found = {file.name: self._find(file) for file in manifest}
            if absent := [name for name, path in found.items() if path is None]:
                raise ConfigError(f"{len(absent)} files were not sent, the first is {absent[0]}")
            self._num_made += 1
            directory = self._weights / f"{self._num_made}-v{version}"
            directory.mkdir()
            for name, path in found.items():
                assert path is not None
                os.symlink(path.absolute(), directory / name)
            return directory

    def keep_only(self, directories: Collection[Path]) -> None:
        """Delete other directories, and the whole files that only they used."""
        with self._lock:
            for directory in self._weights.iterdir():
                if directory not in directories:
                    shutil.rmtree(directory, ignore_errors=True)
            used = set(_targets(directories))
            for blob in self._blobs.iterdir():
                if blob.suffix != ".part" and str(blob.absolute()) not in used:
                    blob.unlink(missing_ok=True)

    def drop_partial(self) -> None:
        """Delete the uploads that another run left."""
        with self._lock:
            for upload in self._uploads.values():
                upload.writer += 1
                upload.path.unlink(missing_ok=True)
            self._uploads.clear()

    def _find(self, file: WeightFile) -> Path | None:
        for path in (self._blobs / file.sha256, self._elsewhere.get(file.sha256)):
            if path is not None and path.is_file() and path.stat().st_size == file.num_bytes:
                return path
        return None


def _targets(directories: Iterable[Path]) -> Iterable[str]:
    for directory in directories:
        for link in directory.iterdir() if directory.is_dir() else ():
            if link.is_symlink():
                yield os.readlink(link)
