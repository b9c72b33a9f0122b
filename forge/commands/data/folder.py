"""The identity of a build, and its directory: done, under way, or somebody else's."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.data.build.output import DROPPED, HELDOUT, MANIFEST, TRAIN, hash_file, settings_json
from forge.data.build.shards import write_whole
from forge.errors import ConfigError, MachineError
from forge.version import __version__

if TYPE_CHECKING:
    from forge.config.schema.build import DataBuild
    from forge.data.build.heldout import HeldoutProblems
    from forge.data.build.rows import RowFile
    from forge.data.prompts.prompt_set import PromptSet

WORK = ".build"
OUTPUTS = (f"{TRAIN}.*", f"{HELDOUT}.*", ".*.partial", DROPPED)
"""Files of a build; another one that was not finished leaves some of them."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
PACKAGES = ("numpy", "pyarrow", "tokenizers", "xxhash", "jinja2")
"""Packages whose version may change the bytes."""


def facts_of(
    build: DataBuild, files: list[RowFile], heldout: HeldoutProblems, prompts: PromptSet
) -> dict[str, Any]:
    """Everything that decides the rows."""
    tokenizer = build.tokenizer.path
    settings = settings_json(build)
    settings["input"].pop("strict")
    return {
        "forge": __version__,
        "code": _code_hash(),
        "versions": {name: version(name) for name in PACKAGES},
        "settings": settings,
        "prompts": prompts.hash,
        "inputs": [file.to_json() for file in files],
        "tokenizer": {
            name: hash_file(tokenizer / name)
            for name in TOKENIZER_FILES
            if tokenizer is not None and (tokenizer / name).is_file()
        },
        "heldout": {
            "problems": len(heldout.sources),
            "sha256": hashlib.sha256(json.dumps(heldout.sources).encode()).hexdigest(),
        },
    }


def _code_hash() -> str:
    """Hash of the code that makes rows."""
    root = Path(__file__).parents[2] / "data"
    paths = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".jinja"))
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def find_finished(folder: Path, key: str) -> Mapping[str, Any] | None:
    """The manifest of the same build if it is done and its files are unchanged.

    Raises:
        ConfigError: the directory has another build, or files of somebody else.
    """
    path = folder / MANIFEST
    if path.is_file():
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except ValueError:
            found = dict[str, Any]()
        if found.get("key") != key:
            raise ConfigError(
                f"output.dir: {folder}: holds a build of other settings, inputs or code; name "
                "another directory, or delete this one"
            )
        outputs: dict[str, str] = found["outputs"]
        if all((folder / n).is_file() and hash_file(folder / n) == h for n, h in outputs.items()):
            return found
        path.unlink()
    elif not (folder / WORK).is_dir() and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"output.dir: {folder}: is not empty, and no build made what is in it; name another"
        )
    return None


@contextmanager
def work_folder(folder: Path, key: str) -> Generator[Path]:
    """The folder of a build under way, for one process; shards of another key are deleted."""
    work = folder / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise MachineError(f"output.dir: {work}: cannot be made: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"output.dir: {folder}: another build is writing to it") from None
        mark = work / "key"
        if not mark.is_file() or mark.read_text() != key:
            shutil.rmtree(work)
            for old in (path for pattern in OUTPUTS for path in folder.glob(pattern)):
                old.unlink()
            work.mkdir()
            write_whole(mark, key.encode())
        for old in work.glob("worker-*.error"):
            old.unlink()
        yield work
    finally:
        os.close(lock)
