"""The output directory of `forge data build` and `forge data harvest`: made once, by one process.

    .build/          work under way, with the facts that it belongs to
    manifest.json    settings, hashes, counts: written last, so that its presence means "whole"

The facts are all that decides the files. A directory with the same facts is found done or
continued; one with others, or with files of somebody else, is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from forge.data.build.output import HELDOUT, MANIFEST, TRAIN, hash_file, write_whole
from forge.data.pairs.rows import DROPPED
from forge.errors import ConfigError, MachineError
from forge.runner.prepare.hub import TOKENIZER_FILES
from forge.version import __version__

WORK = ".build"
OUTPUTS = (f"{TRAIN}.*", f"{HELDOUT}.*", ".*.partial", DROPPED)
"""Files of a build; another one that was not finished leaves some of them."""
PACKAGES = ("numpy", "pyarrow", "tokenizers", "xxhash", "jinja2")
"""Packages whose version may change the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    path: Path
    name: str
    """Key or option that messages name."""
    facts: Mapping[str, Any]
    outputs: Sequence[str] = OUTPUTS

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    def made(self, make: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The manifest of the finished directory, which `make` fills if it is not done yet. Raises
        ConfigError: the directory has another build, or files of somebody else; MachineError: it
        cannot be written. `make`: gets the folder of work, writes the files, and returns its part
        of the manifest."""
        if (done := self._finished()) is not None:
            return done
        try:
            with self._work() as work:
                manifest = {"key": self.key, **self.facts, **make(work)}
                text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
                write_whole(self.path / MANIFEST, text.encode())
                shutil.rmtree(work)
        except OSError as error:
            said = error.strerror or error
            raise MachineError(f"{self.name}: {self.path}: cannot be written: {said}") from error
        return manifest

    def _finished(self) -> Mapping[str, Any] | None:
        """The manifest of the same work if it is done and its files are unchanged."""
        folder, path = self.path, self.path / MANIFEST
        if path.is_file():
            try:
                found: dict[str, Any] = json.loads(path.read_text())
            except ValueError:
                found = dict[str, Any]()
            if found.get("key") != self.key:
                raise self._of_others(found)
            hashes: dict[str, str] = found["outputs"]
            if all(
                (folder / n).is_file() and hash_file(folder / n) == h for n, h in hashes.items()
            ):
                return found
            path.unlink()
        elif not (folder / WORK).is_dir() and folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(
                f"{self.name}: {folder}: is not empty, and no build made what is in it; name "
                "another"
            )
        return None

    def _of_others(self, found: Mapping[str, Any]) -> ConfigError:
        """The error for a directory of work with other facts."""
        before = _flat(found)
        names = [name for name, one in _flat(self.facts).items() if before.get(name) != one]
        said = f" ({', '.join(names)})" if found else ""
        return ConfigError(
            f"{self.name}: {self.path}: holds a build of other settings, inputs or code{said}; "
            "name another directory, or delete this one"
        )

    @contextmanager
    def _work(self) -> Generator[Path]:
        """The folder of work under way, for one process. Raises ConfigError for results of other
        facts."""
        folder, work = self.path, self.path / WORK
        try:
            work.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
        except (NotADirectoryError, FileExistsError):
            raise ConfigError(f"{self.name}: {folder}: found a file; a directory") from None
        except OSError as error:
            raise MachineError(f"{self.name}: {work}: cannot be made: {error.strerror}") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.name}: {folder}: another build is writing to it"
                ) from None
            mark, facts = work / "facts.json", json.dumps(self.facts, sort_keys=True)
            if not mark.is_file() or mark.read_text() != facts:
                if any(file.stat().st_size for file in work.glob("*.jsonl")):
                    raise self._of_others(json.loads(mark.read_text()) if mark.is_file() else {})
                shutil.rmtree(work)
                for old in (path for pattern in self.outputs for path in folder.glob(pattern)):
                    old.unlink()
                work.mkdir()
                write_whole(mark, facts.encode())
            yield work
        finally:
            os.close(lock)


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts, those of a table as `table.name`."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        table: dict[str, Any] = value if hasattr(value, "items") else {}
        found |= {f"{name}.{key}": one for key, one in table.items()} or {name: value}
    return found


def common_facts(*packages: str, tokenizer: Path | None) -> dict[str, Any]:
    """Facts that decide the files of any build: versions, code, tokenizer."""
    files = [] if tokenizer is None else [tokenizer / name for name in TOKENIZER_FILES]
    return {
        "forge": __version__,
        "code": _hash_code(),
        "versions": {name: _version(name) for name in (*PACKAGES, *packages)},
        "tokenizer": {path.name: hash_file(path) for path in files if path.is_file()},
    }


def _version(name: str) -> str:
    """The version of a package by the name of its import; triton's distribution has several."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ", ".join(map(version, packages_distributions().get(name, ())))


def _hash_code() -> str:
    root = Path(__file__).parents[1] / "data"
    kinds = (".py", ".jinja", ".toml", ".txt")
    paths = sorted(path for path in root.rglob("*") if path.suffix in kinds)
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()
