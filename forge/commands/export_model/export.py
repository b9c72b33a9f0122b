"""Exports a run's weights: merged, as an adapter, or as a GGUF file.

    weights of the run ── child ──▶ out: weights, verified by generating with them
                                    out/lineage.json, out/README.md ──▶ hub, with --push

The directory appears when it is complete and verified. Weights of quantized training are merged
into the base in full precision.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio

from forge.commands.export_model.card import lineage_of, render_card
from forge.commands.export_model.child import run_child
from forge.commands.export_model.hub import check_hub, push
from forge.config.load import load_experiment
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError, MachineError
from forge.records import Message
from forge.runner.plan.model_shape import model_type
from forge.runner.weights.resume import find_weights
from forge.serve.installed.engines import ENGINES, LLAMA_MODELS

if TYPE_CHECKING:
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths

PROMPT = "Write a Triton kernel that adds two vectors."
"""Asked of the exported weights to verify them."""
NUM_TOKENS = 16
"""Maximum tokens of the answer."""


class ModelForm(StrEnum):
    """Form of an export."""

    MERGE = "merge"
    """A whole model, as transformers loads it."""
    ADAPTER = "adapter"
    """A PEFT adapter."""
    GGUF = "gguf"
    """One file for llama.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExport:
    """The export that is asked for."""

    kind: ModelForm | None = None
    """None for what was trained: the adapter, or the whole model."""
    out: Path | None = None
    """Directory to make; None for `RUN-KIND` here."""
    checkpoint: str = ""
    """Step whose published weights are exported; empty for the newest."""
    push: str = ""
    """Hub repository; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A finished export."""

    path: Path
    num_bytes: int
    answer: str
    """Text that the exported weights generated."""
    url: str = ""
    """Address on the hub."""

    def to_json(self) -> dict[str, Any]:
        """The output of `forge export model --json`."""
        found = {"path": str(self.path), "bytes": self.num_bytes, "answer": self.answer}
        return {**found, "url": self.url} if self.url else found


def export_model(paths: RunPaths, wanted: ModelExport) -> ExportedModel:
    """Export and verify weights, and push them if asked to.

    Raises:
        ConfigError: `out` exists, the run has no such weights or no adapter, or the llama engine
            does not support the architecture.
        MachineError: a package or the hub cannot be used, or the weights generate nothing.
    """
    weights = find_weights(paths, wanted.checkpoint)
    kind = wanted.kind or (ModelForm.MERGE if weights.adapter is None else ModelForm.ADAPTER)
    out = (wanted.out or Path(f"{paths.name}-{kind}")).absolute()
    if out.exists():
        raise ConfigError(f"--out {out}: it is there already; another directory")
    _require(paths, kind, weights)
    if wanted.push:
        check_hub(wanted.push)
    with _complete(out) as partial:
        verified = _write(paths, kind, weights, partial)
        lineage = lineage_of(paths, weights, kind=kind, verified=verified)
        (partial / "lineage.json").write_text(json.dumps(lineage, indent=2) + "\n")
        (partial / "README.md").write_text(render_card(lineage, name=wanted.push or out.name))
    url = push(out, wanted.push) if wanted.push else ""
    num_bytes = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
    return ExportedModel(path=out, num_bytes=num_bytes, answer=verified["answer"], url=url)


@contextmanager
def _complete(out: Path) -> Generator[Path]:
    """A directory to fill, which gets its name when the block ends without an error."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
    with folder as name:
        partial = Path(name, out.name)
        partial.mkdir()
        yield partial
        partial.rename(out)


def _require(paths: RunPaths, kind: ModelForm, weights: Weights) -> None:
    if kind is ModelForm.ADAPTER and weights.adapter is None:
        raise ConfigError(f"{paths.name}: it trained all weights and has no adapter; --merge")
    if kind is ModelForm.GGUF:
        for name in ("llama_cpp", "gguf"):
            if importlib.util.find_spec(name) is None:
                advice = ENGINES["llama"].advice
                raise MachineError(f"--gguf needs {name}, which is not installed; {advice}")
        if (found := model_type(weights.full)) not in LLAMA_MODELS:
            allowed = ", ".join(sorted(LLAMA_MODELS))
            raise ConfigError(f"--gguf: found a model of type {found}; {allowed}, or --merge")


def _write(paths: RunPaths, kind: ModelForm, weights: Weights, out: Path) -> dict[str, Any]:
    """Write the weights; returns the facts of their verification."""
    chat = ChatTemplate.load(weights.full)
    experiment = load_experiment(paths.experiment, is_here=False)
    ask = {
        "prompt_ids": list(chat.prompt([Message(role="user", content=PROMPT)]).ids),
        "stop_ids": list(chat.stop_token_ids),
        "num_tokens": NUM_TOKENS,
    }
    job: dict[str, Any] = {
        **ask,
        "model_dir": str(weights.full),
        "adapter": weights.adapter and str(weights.adapter),
        "base_name": experiment.model.path,
        "trust_remote_code": experiment.model.trust_remote_code,
    }
    merged = out / ".merged" if kind is ModelForm.GGUF else out
    form = "adapter" if kind is ModelForm.ADAPTER else "merge"
    module = "forge.train.trainer.publish.export"
    found = anyio.run(run_child, module, {**job, "kind": form, "out_dir": str(merged)})
    if kind is ModelForm.GGUF:
        job = {**ask, "model_dir": str(merged), "path": str(out / f"{paths.name}.gguf")}
        found = anyio.run(run_child, "forge.serve.llama.export", job)
        _keep_tokenizer(merged, out)
    if not found["ids"]:
        raise MachineError(f"{paths.name}: the exported weights generate nothing")
    answer = chat.decode(found.pop("ids"), skip_special=False)
    return {**found, "prompt": PROMPT, "answer": answer}


def _keep_tokenizer(merged: Path, out: Path) -> None:
    """Keep the tokenizer beside a GGUF file, which holds none."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (merged / name).is_file():
            (merged / name).rename(out / name)
    shutil.rmtree(merged)
