"""Finds models and the rows of `data.path` and of problem sources before a run is planned and has a
directory: a path as it is, a hub name downloaded into the local cache.

If the cache has everything, no network is needed. Whatever is offline, gated or missing gives a
one-line error. The model directory of a GGUF file is made once for each content and kept in this
user's cache, complete or absent; one process makes it while others wait. Its name is the SHA-256 of
the file, which is recorded as `model.revision`: a run continues when the file has been moved, and
is refused if it was changed. A directory whose chat template `model.chat_template` replaces is
linked into one with that template, where trainer, engines and exports find it. A run can be the
model of another: `runs/x-1`, or `runs/x-1:40` for a step's weights; an adapter is merged into its
base once, in this user's cache, by a child that compares the result with the run's own weights.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio

from forge.config.load import load_experiment
from forge.config.schema import DataTable, Experiment, ModelTable, ProblemsTable, is_hub_name
from forge.config.schema.build import DataBuild
from forge.data.chat import ChatTemplate
from forge.data.pairs.rows import hash_file
from forge.data.template import FILE, SOURCES
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.machine import free_bytes, is_disk_full
from forge.records import Message
from forge.runner.plan.machine import count_cores
from forge.runner.weights.model_dir import check_complete, check_model_path
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.train.gguf import GgufModel, made_dir, read_gguf
from forge.train.handle import run_for_result, run_from_gguf
from forge.views.text import duration, gigabytes, parameters, size

MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
ROW_FILES = (("*.parquet",), ("*.jsonl", "*.json"))
"""Files of a data set, the preferred kind first: many repositories have the same rows in both."""
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
Kind = Literal["model", "dataset"]
NOUNS = {
    "model": "a directory here nor a model on the hub",
    "dataset": "a file or directory here nor a data set on the hub",
}
FREE_FACTOR = 1.1
"""Required disk space relative to the bytes still to be downloaded or written."""


def locate_model(table: ModelTable, *, say: Callable[[str], None] | None = None) -> ModelTable:
    """The table with `path` set to a local directory and `revision` to the commit in it. A model on
    the hub is downloaded (`say` gets a message, and a bar shows it); a GGUF file is made into a
    directory. Blocks. Raises ConfigError, MachineError."""
    if table.path is None:
        return table
    check_model_path(table)
    local = Path(table.path).expanduser()
    if local.is_dir():
        return table.model_copy(update={"path": str(local.resolve())})
    if table.is_gguf:
        return locate_gguf(table, say=say)
    fetched = fetch_snapshot(
        table.path, key="model.path", kind="model", patterns=MODEL_FILES,
        revision=table.revision, say=say,
    )  # fmt: skip
    snapshot = check_complete(fetched)
    return table.model_copy(update={"path": str(snapshot), "revision": snapshot.name})


def locate_rows(experiment: Experiment, *, say: Callable[[str], None] | None = None) -> Experiment:
    """The experiment with hub names of data sets replaced by directories in the local cache. Raises
    ConfigError for no such data set or no rows in it, MachineError."""
    tables = {"data": experiment.data, "problems": experiment.problems}
    return experiment.model_copy(
        update={name: _located(table, say=say) for name, table in tables.items()}
    )


def locate_build(build: DataBuild) -> DataBuild:
    """The build with directories in the local cache in place of hub names. Raises as
    `locate_rows`."""
    rows = build.input.model_copy(
        update={"path": locate_data_set(build.input.path, key="input.path")}
    )
    tokenizer = build.tokenizer
    if tokenizer.path is not None and not tokenizer.path.is_dir():
        path = fetch_snapshot(
            str(tokenizer.path), key="tokenizer.path", kind="model", patterns=TOKENIZER_FILES
        )
        tokenizer = tokenizer.model_copy(update={"path": path})
    return build.model_copy(update={"input": rows, "tokenizer": tokenizer})


def _located(
    table: DataTable | ProblemsTable, *, say: Callable[[str], None] | None
) -> DataTable | ProblemsTable:
    parts = [
        part
        if part.source != "file" or part.path is None
        else part.model_copy(
            update={"path": locate_data_set(part.path, key=f"{table.key_of(index)}path", say=say)}
        )
        for index, part in enumerate(table.parts())
    ]
    update = {"path": parts[0].path} if table.sources is None else {"sources": parts}
    return table.model_copy(update=update)


def locate_data_set(path: Path, *, key: str, say: Callable[[str], None] | None = None) -> Path:
    """A path as it is, or the directory of a data set on the hub. Raises as `locate_rows`."""
    name = str(path)
    if path.exists() or not is_hub_name(name):
        return path
    for patterns in ROW_FILES:
        found = fetch_snapshot(name, key=key, kind="dataset", patterns=patterns, say=say)
        if any(file for pattern in patterns for file in found.rglob(pattern)):
            return found
    raise ConfigError(f"{key}: {name}: a data set without Parquet and JSON files")


def fetch_snapshot(
    name: str, *, key: str, kind: Kind, patterns: Sequence[str], revision: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:  # fmt: skip
    """Directory of the files of a repository that match the patterns. Downloads what the cache
    lacks, resumably, after checking the free disk space; `key` is for messages. Raises ConfigError
    for no such repository or revision, or no access to it; MachineError."""
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where, chosen = f"{key}: {name}", list(patterns)
    try:
        needed = _ask_disk(name, revision, key=key, kind=kind, patterns=chosen)
        if needed and say:
            say(f"{name}: {gigabytes(needed, places=2)} to fetch from the hub")
        with _bars(shown=say is not None):
            return Path(
                snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=chosen)
            )
    except ForgeError:
        raise
    except GatedRepoError as error:
        words = "gated; accept its terms on the hub and run `hf auth login`"
        raise ConfigError(f"{where}: {words}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigError(f"{where}: neither {NOUNS[kind]}") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model.revision: {revision}: {name} has no such revision") from error
    except LocalEntryNotFoundError as error:
        what = "a directory" if kind == "model" else "a file or a directory"
        raise MachineError(
            f"{where}: not whole in the local cache, and the hub cannot be reached; "
            f"fetch it on a machine with a network, or give {what}"
        ) from error
    except Exception as error:  # three HTTP libraries and a Rust one, without a common base
        if is_disk_full(error):
            raise MachineError(f"{where}: the disk is full; HF_HOME names another one") from error
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise MachineError(f"{where}: cannot be fetched: {reason}") from error


def _ask_disk(name: str, revision: str | None, *, key: str, kind: Kind, patterns: list[str]) -> int:
    """Bytes still to be downloaded; 0 if the hub does not say, and the real download will fail with
    the reason. Raises MachineError if they do not fit on the disk."""
    from huggingface_hub import (
        constants,
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )
    from huggingface_hub.errors import DryRunError

    try:
        with _bars(shown=False):
            planned = snapshot_download(
                name, repo_type=kind, revision=revision, allow_patterns=patterns, dry_run=True
            )
    except DryRunError:
        return 0
    needed = sum(file.file_size or 0 for file in planned if file.will_download)
    cache = Path(constants.HF_HUB_CACHE)
    free = free_bytes(cache)
    if needed * FREE_FACTOR > free:
        raise MachineError(
            f"{key}: {name}: {gigabytes(needed)} to fetch, {gigabytes(free)} free in "
            f"{cache}; set HF_HOME to a larger disk"
        )
    return needed


@contextmanager
def _bars(*, shown: bool) -> Generator[None]:
    """Shows or hides the hub library's progress bars, which is a setting of the whole process."""
    from huggingface_hub import utils

    if shown or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


MAX_THREADS = 8
WIDTH_BYTES = 2
WAIT_S = 3600.0


def locate_gguf(table: ModelTable, *, say: Callable[[str], None] | None) -> ModelTable:
    """The table with `path` set to the model directory of a GGUF file, made if it is not there, and
    `revision` to the file's SHA-256. Raises ConfigError for no such file, another one than the
    revision, or one that is not read; MachineError without room."""
    path, revision = Path(table.path or "").expanduser().absolute(), table.revision
    if not path.is_file():
        if revision is None or not made_dir(revision).is_dir():
            raise ConfigError(
                f"model.path: {path}: not there, and no model that was made of it; put it back"
            )
        return table.model_copy(update={"path": str(made_dir(revision))})
    model, digest = read_gguf(path), hash_file(path)
    if revision not in (None, digest):
        raise ConfigError(
            f"model.path: {path}: its SHA-256 is {digest}, and model.revision names {revision}; "
            "the same file"
        )
    folder = made_dir(digest)
    with alone(folder):
        if not folder.is_dir():
            _make(model, folder, say=say)
    return table.model_copy(update={"path": str(folder), "revision": digest})


def find_made(table: ModelTable) -> Path | None:
    path, digest = Path(table.path or "").expanduser(), table.revision
    if digest is None and path.is_file():
        digest = hash_file(path)
    found = made_dir(digest or "")
    return found if found.is_dir() else None


def _make(model: GgufModel, folder: Path, *, say: Callable[[str], None] | None) -> None:
    needed = model.num_params * WIDTH_BYTES
    require_room(needed, folder, name=str(model.path))
    facts = f"{model.architecture}, {model.quantization}, {parameters(model.num_params)} parameters"
    if say:
        say(f"{model.path.name}: {facts}: dequantized once, into {folder}")
    began = time.monotonic()
    threads = min(MAX_THREADS, count_cores())
    try:
        anyio.run(partial(run_from_gguf, model.path, out_dir=folder, threads=threads))
    finally:  # what a child that ended left
        shutil.rmtree(folder.with_name(f".{folder.name}.partial"), ignore_errors=True)
    if say:
        sizes = f"{size(model.num_bytes)} → {size(needed)} in bf16"
        say(f"{model.path.name}: {facts}, {sizes}, {duration(time.monotonic() - began)}")


def require_room(needed: int, folder: Path, *, name: str) -> None:
    """Raises MachineError if a model of so many bytes does not fit the disk of its directory."""
    if needed * FREE_FACTOR > (free := free_bytes(folder.parent)):
        raise MachineError(
            f"model.path: {name}: {size(needed)} to write, {size(free)} free in {folder.parent}; "
            "set XDG_CACHE_HOME to a larger disk"
        )


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """No other process makes this directory. Raises Stalled if one does for an hour."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("a")
    except OSError as error:
        raise MachineError(f"{folder.parent}: {error.strerror}; XDG_CACHE_HOME names it") from error
    began = time.monotonic()
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > WAIT_S:
                    raise Stalled(f"{lock.name}: held by another process for an hour") from None
                time.sleep(0.2)
        yield


def with_template(model: ModelTable, folder: Path) -> ModelTable:
    """The located model, with its path replaced by `folder`: links to its files, and the chat
    template. The same model without `chat_template`. Raises ConfigError for one that it cannot use.
    """
    if model.chat_template is None or model.path is None:
        return model
    source = Path(model.path)
    chat = ChatTemplate.load(source, chat_template=model.chat_template)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and path.name not in SOURCES:
            (folder / path.name).symlink_to(path.resolve())
    (folder / FILE).write_text(chat.template.source, encoding="utf-8")
    return model.model_copy(update={"path": str(folder)})


def with_run(
    experiment: Experiment, *, merges: bool = True, say: Callable[[str], None] | None = None
) -> Experiment:
    """The experiment with a model directory in place of a run that `model.path` names. `merges`:
    False to take the base of an adapter, which has the same shape, for a plan; `say` gets a message
    if an adapter is merged, which takes minutes. Raises ConfigError, MachineError."""
    model = experiment.model
    name, step = model.run_and_step
    paths = RunPaths(Path(name).expanduser().resolve())
    if not name or not paths.run_db.is_file():
        return experiment
    # Only here: `forge plan` of any other model loads neither numpy nor the store.
    from forge.runner.weights.resume import find_weights
    from forge.store.reader import open_run

    open_run(paths).close()  # first: of another version, its keys may be unknown too
    weights, its = find_weights(paths, step), load_experiment(paths.experiment, is_here=False).model
    folder = weights.full
    if weights.adapter is not None and merges:
        folder = merge(paths.name, weights, its, say=say)
    update = {"path": str(folder), "chat_template": model.chat_template or its.chat_template}
    return experiment.model_copy(update={"model": model.model_copy(update=update)})


PROMPT = "Write a Triton kernel that adds two vectors."
NUM_TOKENS = 16
TIMEOUT_S = 7200.0
"""Maximum duration of a job: a large model is read, merged and written on the CPU."""
QUIET = {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
DIGITS = 16


def merge(
    name: str, weights: Weights, model: ModelTable, *, say: Callable[[str], None] | None
) -> Path:
    """Directory of a run's weights with their adapter merged, made if it is not there."""
    from forge.runner.weights.resume import sha256_of_weights

    assert weights.adapter is not None
    folder = made_dir(f"{name}-{sha256_of_weights(weights.adapter)[:DIGITS]}")
    with alone(folder):
        if folder.is_dir():
            return folder
        needed = sum(file.stat().st_size for file in weights.full.glob("*.safetensors"))
        require_room(needed, folder, name=name)
        if say:
            say(f"{name}: its adapter is merged into {weights.full} once, as {folder}")
        partial_dir = folder.with_name(f".{folder.name}.partial")
        try:
            job = export_job(weights, model) | {"kind": "merge", "out_dir": str(partial_dir)}
            anyio.run(partial(run_child, "forge.train.trainer.publish.export", job))
            partial_dir.rename(folder)
        finally:  # what a child that ended left
            shutil.rmtree(partial_dir, ignore_errors=True)
    return folder


def export_job(weights: Weights, model: ModelTable) -> dict[str, Any]:
    """Config of the child that writes weights as a model or an adapter, without `kind` and
    `out_dir`; `model` is that of the run."""
    chat = ChatTemplate.load(weights.full, chat_template=model.chat_template)
    return {
        "prompt_ids": list(chat.prompt([Message(role="user", content=PROMPT)]).ids),
        "stop_ids": list(chat.stop_token_ids),
        "num_tokens": NUM_TOKENS,
        "model_dir": str(weights.full),
        "adapter": weights.adapter and str(weights.adapter),
        "base_name": str(weights.full) if model.is_gguf else model.path,
        "trust_remote_code": model.trust_remote_code,
    }


DISK_FULL = ("No space left on device", "os error 28")
"""Words of Python and of safetensors in the log of a child that could not write."""


async def run_child(module: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run `python -m MODULE` with a config; returns the JSON of its result file. Raises
    MachineError if the disk is full, ChildDied if it ended without a result, Stalled."""
    with tempfile.TemporaryDirectory(prefix="forge-export-") as folder:
        try:
            return await run_for_result(
                module, job, log_dir=Path(folder), makes="an exported model", timeout_s=TIMEOUT_S,
                threads=len(os.sched_getaffinity(0)), extra=QUIET,
            )  # fmt: skip
        except ChildDied as died:
            if any(words in str(died) for words in DISK_FULL):
                where = job.get("out_dir") or job["path"]
                raise MachineError(f"{where}: the disk is full") from died
            raise
