"""What no single key can say: keys that exclude or need each other, files that must exist, stages
that cannot work.

Each check is a generator of mistakes over a valid experiment. Checks ask the file system and
nothing else; what the machine has (GPUs, memory, disk) is asked by `runner.plan`.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake, show
from forge.config.checks.outlets import outlets
from forge.config.checks.overlap import overlap
from forge.config.checks.pinning import pinning
from forge.config.schema import JUDGE_URL, SERVE_URL, EvalStage, Experiment, GrpoStage, SftStage

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from forge.config.schema import KeyPath

HUB_NAME = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b")
"""`name` or `owner/name`; anything else can only be a directory."""


def check(
    experiment: Experiment, *, mistaken: Set[KeyPath] = frozenset(), is_here: bool = True
) -> list[Mistake]:
    """All mistakes between keys; none about a key in `mistaken`, whose value here is only a
    default, and none about files where the experiment is for another machine (`is_here` false).
    """
    parts = (_model, _tiny, _problems, _data, _lengths, _stages, _steps, _devices, _judge, _serve)
    found = chain.from_iterable(part(experiment) for part in (*parts, overlap, pinning, outlets))
    return [
        mistake
        for mistake in found
        if mistake.path not in mistaken and (is_here or not mistake.is_about_here)
    ]


def _mistake(text: str, *path: str | int) -> Mistake:
    return Mistake(path=path, text=text)


def _absent(text: str, *path: str | int) -> Mistake:
    """A file that is not on this machine."""
    return Mistake(path=path, text=text, is_about_here=True)


def _model(experiment: Experiment) -> Iterator[Mistake]:
    model = experiment.model
    if model.init and model.path:
        yield _mistake("found both init and path; exactly one of them", "model", "path")
    if not model.init and not model.path:
        yield _mistake(
            "found no model to start from; "
            'init = "tiny" for a random one, or path = a directory or a hub name',
            "model",
        )
    is_hub_name = model.path and HUB_NAME.fullmatch(model.path)
    if model.path and not is_hub_name and not Path(model.path).expanduser().is_dir():
        yield _absent(
            f'found "{model.path}", which is no directory; a directory or a hub name',
            "model",
            "path",
        )
    if model.adapter and not (model.adapter / "adapter_config.json").is_file():
        yield _absent(
            f'found "{model.adapter}", which has no adapter_config.json; a PEFT adapter',
            "model",
            "adapter",
        )
    python = experiment.serve.python
    if python and not python.is_file():
        yield _absent(f'found "{python}", which is no file; an interpreter', "serve", "python")
    if model.quantize and not model.lora:
        yield _mistake(
            "found it without [model.lora]; 4-bit weights are not trained, only an adapter on them",
            *("model", "quantize"),
        )
    if model.quantize and model.dtype == "float32":
        yield _mistake(
            'found "float32" with [model.quantize], which computes in bfloat16; "bfloat16" or '
            '"auto"',
            *("model", "dtype"),
        )


def _tiny(experiment: Experiment) -> Iterator[Mistake]:
    if not experiment.model.init:
        return
    tiny = experiment.model.tiny
    if tiny.head_dim % 2:
        found = f"found {tiny.head_dim}; an even size (rotary positions)"
        yield _mistake(found, "model", "tiny", "head_dim")
    if tiny.num_heads % tiny.num_kv_heads:
        yield _mistake(
            f"found {tiny.num_kv_heads}; a divisor of num_heads = {tiny.num_heads}",
            *("model", "tiny", "num_kv_heads"),
        )


def _problems(experiment: Experiment) -> Iterator[Mistake]:
    problems = experiment.problems
    if problems.source == "generated":
        if problems.path:
            yield _mistake('found a path; allowed with source = "dir" only', "problems", "path")
        if problems.sizes == "gpu" and not experiment.devices.judge and not experiment.judge.url:
            found = 'found "gpu" with judges on the CPU; "small", or devices.judge and cards for it'
            yield _mistake(found, "problems", "sizes")
        if problems.num_heldout >= problems.num_problems:
            fewer = f"fewer than num_problems = {problems.num_problems}"
            yield _mistake(f"found {problems.num_heldout}; {fewer}", "problems", "num_heldout")
        return
    if experiment.model.init:
        yield _mistake(
            'found "dir" with model.init, whose tokenizer learns from answers that "dir" has not; '
            "start from model.path",
            *("problems", "source"),
        )
    if not problems.path:
        yield _mistake(
            'found source = "dir" without path; the directory of the problems', "problems", "source"
        )
    elif not problems.path.is_dir():
        yield _absent(f'found "{problems.path}", which is no directory', "problems", "path")
    elif not any(problems.path.rglob("*.py")):
        yield _absent(f'found "{problems.path}", which has no *.py files', "problems", "path")
    if problems.sizes != "small":
        yield _mistake(
            f'found "{problems.sizes}"; allowed with source = "generated" only, files have their '
            "own sizes (problems.overrides changes them)",
            *("problems", "sizes"),
        )


def _data(experiment: Experiment) -> Iterator[Mistake]:
    data = experiment.data
    if data.source == "generated":
        if data.path:
            yield _mistake('found a path; allowed with source = "file" only', "data", "path")
        return
    if not data.path:
        yield _mistake('found source = "file" without path; the file of rows', "data", "source")
    elif not data.path.exists():
        yield _absent(f'found "{data.path}", which is not there; a file of rows', "data", "path")


def _lengths(experiment: Experiment) -> Iterator[Mistake]:
    context, completion = experiment.serve.context_tokens, experiment.rollout.max_completion_tokens
    if context <= completion:
        yield _mistake(
            f"found {context}; more than rollout.max_completion_tokens = {completion}, "
            "since prompt and completion share it",
            *("serve", "context_tokens"),
        )
    if not experiment.model.init:
        return
    limit = experiment.model.tiny.max_context_tokens
    if context > limit:
        yield _mistake(
            f"found {context}; at most model.tiny.max_context_tokens = {limit}",
            "serve",
            "context_tokens",
        )
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage) and stage.max_length > limit:
            yield _mistake(
                f"found {stage.max_length}; at most model.tiny.max_context_tokens = {limit}",
                *("stage", index, "max_length"),
            )


def _stages(experiment: Experiment) -> Iterator[Mistake]:
    is_random = experiment.model.init is not None and experiment.model.adapter is None
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage):
            is_random = False
            if experiment.problems.source == "dir" and experiment.data.source != "file":
                yield _mistake(
                    'found "sft", which needs answers, and problems.source = "dir" has none; '
                    'data.source = "file" for rows of a file, or grpo or eval from a model that '
                    "can already write kernels",
                    *("stage", index, "kind"),
                )
        if isinstance(stage, GrpoStage) and is_random:
            yield _mistake(
                "found grpo on random weights, where every group is flat and nothing learned; "
                'put a [[stage]] with kind = "sft" before it, or start from [model] path',
                *("stage", index, "kind"),
            )
        is_generated = experiment.problems.source == "generated"
        heldout = experiment.problems.num_heldout
        wanted = stage.num_problems if isinstance(stage, EvalStage) else None
        if is_generated and wanted and wanted > heldout:
            yield _mistake(
                f"found {wanted}; at most problems.num_heldout = {heldout}",
                *("stage", index, "num_problems"),
            )


def _steps(experiment: Experiment) -> Iterator[Mistake]:
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, EvalStage):
            continue
        epochs = stage.epochs if isinstance(stage, SftStage) else None
        if stage.steps and epochs:
            yield _mistake("found both steps and epochs; exactly one of them", "stage", index)
        if not stage.steps and not epochs:
            yield _mistake("found neither steps nor epochs; exactly one of them", "stage", index)
        if stage.steps and stage.warmup_steps > stage.steps:
            yield _mistake(
                f"found {stage.warmup_steps}; at most steps = {stage.steps}",
                *("stage", index, "warmup_steps"),
            )
        if stage.min_learning_rate > stage.learning_rate:
            yield _mistake(
                f"found {stage.min_learning_rate}; at most learning_rate = {stage.learning_rate}",
                *("stage", index, "min_learning_rate"),
            )
        if stage.min_learning_rate and stage.schedule == "constant":
            yield _mistake(
                f'found {stage.min_learning_rate} with schedule = "constant"; "linear" or '
                '"cosine", which end there',
                *("stage", index, "min_learning_rate"),
            )
        if stage.context_parallel > 1:
            yield _mistake(
                f"found {stage.context_parallel}; 1, since no trainer here splits a sequence over "
                "GPUs (TRL's GRPO trainers cannot); fsdp2 and smaller micro-batches save memory",
                *("stage", index, "context_parallel"),
            )
        if experiment.model.quantize and stage.parallel == "fsdp2":
            yield _mistake(
                'found "fsdp2" with [model.quantize], whose 4-bit weights cannot be taken apart; '
                '"ddp" or "auto"',
                *("stage", index, "parallel"),
            )


def _serve(experiment: Experiment) -> Iterator[Mistake]:
    serve = experiment.serve
    for index, url in enumerate(serve.url):
        if not SERVE_URL.fullmatch(url):
            yield _mistake(
                f'found "{url}"; http://HOST:PORT[/PATH] or unix:/PATH', *("serve", "url", index)
            )
    for name in ("api_key_env", "model_name"):
        if getattr(serve, name) and not serve.url:
            yield _mistake("found it without serve.url, whose it is", "serve", name)
    if not serve.url:
        return
    for index, stage in enumerate(experiment.stage):
        if not isinstance(stage, EvalStage):
            yield _mistake(
                f'found "{stage.kind}" with serve.url, whose servers take no new weights; eval '
                "stages only, or engines of our own (no serve.url)",
                *("stage", index, "kind"),
            )


def _judge(experiment: Experiment) -> Iterator[Mistake]:
    for index, url in enumerate(experiment.judge.url):
        if not JUDGE_URL.fullmatch(url):
            yield _mistake(
                f'found "{url}"; http://HOST:PORT or unix:/PATH', *("judge", "url", index)
            )


def _devices(experiment: Experiment) -> Iterator[Mistake]:
    devices, replicas = experiment.devices, experiment.serve.replicas
    wanted = {"train": devices.train, "serve": devices.serve, "judge": devices.judge}
    for role, num in wanted.items():
        if num and devices.gpus is None:
            yield _mistake(
                f'found {show(num)}, and devices.gpus is absent; gpus = "auto" or a list of them',
                *("devices", role),
            )
    if devices.serve == "auto" or not devices.serve:
        return
    if replicas > devices.serve and replicas % devices.serve:
        yield _mistake(
            f"found {replicas} replicas on {devices.serve} GPUs; one a GPU, or as many on each",
            *("serve", "replicas"),
        )
    if devices.serve > replicas and devices.serve % replicas:
        yield _mistake(
            f"found {devices.serve} GPUs for {replicas} replicas; as many GPUs for each",
            *("devices", "serve"),
        )
