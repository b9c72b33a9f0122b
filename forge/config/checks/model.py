"""Checks of `[model]`, and of the lengths that its context must hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from forge.config.checks.mistake import Mistake, absent, mistake
from forge.config.schema import Experiment, SftStage

HUB_NAME = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b")
"""`name` or `owner/name`; anything else can only be a directory."""


def check_model(experiment: Experiment) -> Iterator[Mistake]:
    """One source of weights, which exists; quantized weights only under an adapter."""
    model = experiment.model
    if model.init and model.path:
        yield mistake("found both init and path; set exactly one of them", "model", "path")
    if model.is_absent and not experiment.serve.url:
        yield mistake(
            "found no model to start from; "
            'set init = "tiny" for a random one, or path = a directory or a hub name',
            "model",
        )
    is_hub_name = model.path and HUB_NAME.fullmatch(model.path)
    if model.path and not is_hub_name and not Path(model.path).expanduser().is_dir():
        text = f'found "{model.path}", which is not a directory; a directory or a hub name'
        yield absent(text, "model", "path")
    if model.adapter and not (model.adapter / "adapter_config.json").is_file():
        text = f'found "{model.adapter}", which has no adapter_config.json; a PEFT adapter'
        yield absent(text, "model", "adapter")
    python = experiment.serve.python
    if python and not python.is_file():
        text = f'found "{python}", which is not a file; a Python interpreter'
        yield absent(text, "serve", "python")
    if model.quantize and not model.lora:
        text = "set without [model.lora]; 4-bit weights are frozen, only an adapter can be trained"
        yield mistake(text, "model", "quantize")
    if model.quantize and model.dtype == "float32":
        text = 'found "float32" with [model.quantize], which computes in bfloat16; "bfloat16" or'
        yield mistake(f'{text} "auto"', "model", "dtype")


def check_tiny(experiment: Experiment) -> Iterator[Mistake]:
    """Head sizes of the random model that attention can use."""
    if not experiment.model.init:
        return
    tiny = experiment.model.tiny
    if tiny.head_dim % 2:
        text = f"found {tiny.head_dim}; an even number, for rotary positions"
        yield mistake(text, "model", "tiny", "head_dim")
    if tiny.num_heads % tiny.num_kv_heads:
        text = f"found {tiny.num_kv_heads}; a divisor of num_heads = {tiny.num_heads}"
        yield mistake(text, "model", "tiny", "num_kv_heads")


def check_lengths(experiment: Experiment) -> Iterator[Mistake]:
    """A context that holds a completion, in a model that has so many positions."""
    context, completion = experiment.serve.context_tokens, experiment.rollout.max_completion_tokens
    if context <= completion:
        yield mistake(
            f"found {context}; more than rollout.max_completion_tokens = {completion}, "
            "since prompt and completion share it",
            *("serve", "context_tokens"),
        )
    if not experiment.model.init:
        return
    limit = experiment.model.tiny.max_context_tokens
    most = f"at most model.tiny.max_context_tokens = {limit}"
    if context > limit:
        yield mistake(f"found {context}; {most}", "serve", "context_tokens")
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage) and stage.max_length > limit:
            yield mistake(f"found {stage.max_length}; {most}", "stage", index, "max_length")
