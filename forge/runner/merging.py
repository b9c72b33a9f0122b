"""Weights of a run as a model of their own: an adapter is merged into its base once, in this user's
cache, by a child that compares the result with the run's own weights. Nothing here imports torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from forge.config.schema import ModelTable
from forge.data.chat import ChatTemplate
from forge.errors import ChildDied, MachineError
from forge.records import Message
from forge.runner.prepare.hub import alone, require_room
from forge.runner.weights.resume import sha256_of_weights
from forge.serve.weights import Weights
from forge.train.gguf import made_dir
from forge.train.handle import run_for_result

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
