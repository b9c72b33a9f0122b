"""Checks of the model, its prompts, its stages and its reward: sources of weights, files that
exist, lengths, stages that cannot work where they are, and how far generation may run ahead of
training.

The file of `reward.function` is parsed, never executed: `forge run` calls the function once before
it starts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake, absent, mistake, show
from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage, TrainStage
from forge.config.schema.training import CHATML, names_file

if TYPE_CHECKING:
    from forge.config.schema import RewardTable

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
    path = Path(model.path or "").expanduser()
    if model.is_gguf:
        if not path.exists() and model.revision is None:
            yield absent(f'found "{model.path}", which is not there; a file', "model", "path")
    elif model.path and not is_hub_name and not Path(model.run_and_step[0]).expanduser().is_dir():
        text = f'found "{model.path}", which is not a directory; a directory, RUN or RUN:STEP,'
        yield absent(f"{text} a GGUF file (.gguf) or a hub name", "model", "path")
    if model.adapter and not (model.adapter / "adapter_config.json").is_file():
        text = f'found "{model.adapter}", which has no adapter_config.json; a PEFT adapter'
        yield absent(text, "model", "adapter")
    template = model.chat_template
    if template is not None and names_file(template) and not Path(template).is_file():
        text = f'found "{template}", which is not a file; "{CHATML}" or a jinja file'
        yield absent(text, "model", "chat_template")
    if template is not None and model.path is None:
        yield mistake(
            "set without model.path, whose template it replaces", "model", "chat_template"
        )
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


TINY_TAG = "think"
"""Tag in the vocabulary and the chat template of a random model."""


def check_prompt(experiment: Experiment) -> Iterator[Mistake]:
    """Files that exist, and no other tag of thinking than the tokenizer's."""
    prompt = experiment.prompt
    files = {
        "system": prompt.system,
        "first": prompt.first,
        "feedback": prompt.feedback,
        "example": prompt.example or None,
    }
    for key, path in files.items():
        if path is not None and not path.is_file():
            yield absent(f'found "{path}", which is not a file; a text file', "prompt", key)
    if experiment.model.init and prompt.thinking != TINY_TAG:
        text = f'found "{prompt.thinking}" with model.init, whose chat template knows "{TINY_TAG}"'
        yield mistake(f"{text} alone", "prompt", "thinking")


def check_order(experiment: Experiment) -> Iterator[Mistake]:
    """Stages that need answers, a model that can write kernels, or more problems."""
    is_random = experiment.model.init is not None and experiment.model.adapter is None
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage):
            is_random = False
            if not experiment.problems.has_generated and experiment.data.has_generated:
                yield mistake(
                    'found "sft", which needs answers, and only generated problems have some; '
                    'set data.source = "file" for rows of a file, or use grpo or eval with a model '
                    "that can already write kernels",
                    *("stage", index, "kind"),
                )
        if isinstance(stage, GrpoStage) and is_random:
            yield mistake(
                "found grpo on random weights, where every group is flat and nothing is learned; "
                'put a [[stage]] with kind = "sft" before it, or start from [model] path',
                *("stage", index, "kind"),
            )
        heldout = experiment.problems.num_reserved
        wanted = stage.num_problems if isinstance(stage, EvalStage) else None
        if not experiment.problems.has_others and wanted and wanted > heldout:
            text = f"found {wanted}; at most problems.num_heldout = {heldout}"
            yield mistake(text, "stage", index, "num_problems")


def check_training(experiment: Experiment) -> Iterator[Mistake]:
    """Steps, learning rates and parallelism of each training stage."""
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, EvalStage):
            continue
        yield from _check_steps(stage, index)
        yield from _check_learning_rate(stage, index)
        if isinstance(stage, SftStage) and stage.loss_turns == "all":
            yield from _check_loss_turns(experiment, index)
        if isinstance(stage, GrpoStage) and stage.delta is not None:
            yield from _check_delta(stage, index)
        if experiment.model.quantize and stage.parallel == "fsdp2":
            text = 'found "fsdp2" with [model.quantize], whose 4-bit weights cannot be sharded;'
            yield mistake(f'{text} "ddp" or "auto"', "stage", index, "parallel")


def _check_loss_turns(experiment: Experiment, index: int) -> Iterator[Mistake]:
    data = experiment.data
    if data.has_generated and data.repair_share:
        yield mistake(
            'found "all" with generated repairs, whose earlier answers are wrong on purpose; '
            '"last", or data.repair_share = 0',
            *("stage", index, "loss_turns"),
        )


def _check_delta(stage: GrpoStage, index: int) -> Iterator[Mistake]:
    path, found = ("stage", index, "delta"), f"found {stage.delta:g}"
    if stage.loss == "cispo":
        yield mistake(f'{found} with loss = "cispo", which bounds every ratio; remove it', *path)
    elif stage.delta is not None and stage.delta <= 1 + stage.clip_high:
        yield mistake(f"{found}; above 1 + clip_high = {1 + stage.clip_high:g}", *path)


def _check_steps(stage: TrainStage, index: int) -> Iterator[Mistake]:
    epochs = stage.epochs if isinstance(stage, SftStage) else None
    if stage.steps and epochs:
        yield mistake("found both steps and epochs; set exactly one of them", "stage", index)
    if not stage.steps and not epochs:
        yield mistake("found neither steps nor epochs; set exactly one of them", "stage", index)
    if stage.steps and stage.warmup_steps > stage.steps:
        text = f"found {stage.warmup_steps}; at most steps = {stage.steps}"
        yield mistake(text, "stage", index, "warmup_steps")


def _check_learning_rate(stage: TrainStage, index: int) -> Iterator[Mistake]:
    path = ("stage", index, "min_learning_rate")
    if stage.min_learning_rate > stage.learning_rate:
        text = f"found {stage.min_learning_rate}; at most learning_rate = {stage.learning_rate}"
        yield mistake(text, *path)
    if stage.min_learning_rate and stage.schedule == "constant":
        text = f'found {stage.min_learning_rate} with schedule = "constant", which does not decay;'
        yield mistake(f'{text} set schedule to "linear" or "cosine"', *path)


def check_overlap(experiment: Experiment) -> Iterator[Mistake]:
    """Values that max_staleness does not allow, or that have no effect."""
    rollout = experiment.rollout
    steps = rollout.max_staleness + 1
    most = f"at most rollout.max_staleness + 1 = {steps}"
    if rollout.replay > steps:
        text = f"found {rollout.replay}; {most}, since an older group may not be trained on"
        yield mistake(text, "rollout", "replay")
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, GrpoStage) and stage.publish_every > steps:
            text = f"found {stage.publish_every}; {most}, or the trainer waits for its own publish"
            yield mistake(text, "stage", index, "publish_every")
    yield from _check_max_concurrency(experiment)


def _check_max_concurrency(experiment: Experiment) -> Iterator[Mistake]:
    rollout, serve = experiment.rollout, experiment.serve
    if serve.max_concurrency is None:
        return
    path, found = ("serve", "max_concurrency"), f"found {serve.max_concurrency}"
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    if not trains or rollout.groups_in_flight != "auto" or not rollout.max_staleness:
        yield mistake(
            f'{found}; it only limits rollout.groups_in_flight = "auto" in a grpo stage with '
            "rollout.max_staleness of 1 or more",
            *path,
        )
    elif serve.max_concurrency * serve.replicas < rollout.group_size:
        least = -(-rollout.group_size // serve.replicas)
        text = f"{found}; at least {least}, for one group of rollout.group_size"
        yield mistake(f"{text} = {rollout.group_size}", *path)


REPLACED = (
    "compiled", "correct", "own_share", "speedup", "shape", "improvement", "speedup_cap",
    "slower_penalty", "rejected", "compile_error",
)  # fmt: skip
"""Weights that a function replaces. `stop_at_speedup` ends rollouts with any reward."""
OPTIONS = ("function_per", "function_timeout_s")


def check_function(experiment: Experiment) -> Iterator[Mistake]:
    """A file that defines the function, and no key without an effect."""
    reward = experiment.reward
    if reward.function is None:
        for key in OPTIONS:
            if _is_set(reward, key):
                text = f"found {show(getattr(reward, key))} without reward.function; both or none"
                yield mistake(text, "reward", key)
        return
    for key in REPLACED:
        if _is_set(reward, key):
            text = f"found {show(getattr(reward, key))} with reward.function, whose terms are the"
            yield mistake(f"{text} whole reward; remove one of them", "reward", key)
    file, _, name = reward.function.rpartition(":")
    if not Path(file).is_file():
        text = f'found "{file}", which is not a file; a Python file with the function {name}'
        yield absent(text, "reward", "function")
    elif fault := _fault(Path(file), name):
        yield absent(fault, "reward", "function")


def check_improvement(experiment: Experiment) -> Iterator[Mistake]:
    """No reward for a first answer that is slow on purpose."""
    reward, rollout = experiment.reward, experiment.rollout
    later = sum(rollout.gamma**turn for turn in range(1, rollout.max_turns))
    if reward.improvement * later > reward.speedup:
        most = f"at most {reward.speedup / later:.3g}: reward.speedup = {reward.speedup:g}"
        yield mistake(
            f"found {reward.improvement:g}; {most} over what rollout.gamma = {rollout.gamma:g} "
            "leaves of later turns, or a slow first answer would earn more than a fast one",
            *("reward", "improvement"),
        )


def _is_set(reward: RewardTable, key: str) -> bool:
    """True for another value than the default, which a resolved experiment lists too."""
    return getattr(reward, key) != type(reward).model_fields[key].default


def _fault(file: Path, name: str) -> str:
    """A fault that the text of a file shows; empty if there is none."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None) or 1
        return f"{file}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}"
    if not _bound(tree).isdisjoint({name, "*"}):
        return ""
    names = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
    return f'{file} defines no "{name}"; one of {", ".join(names) or "its functions: none"}'


def _bound(tree: ast.Module) -> set[str]:
    """Names that statements anywhere in a file may bind."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names.add(other or name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names
