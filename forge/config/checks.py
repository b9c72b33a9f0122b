"""All checks between the keys of a valid experiment, in one list, and those of the settings of
`forge data build`. Called by `load`.

Each check is a generator of mistakes. Checks ask the file system and the environment only; the
machine's GPUs, memory and disk are checked by `runner.plan`. The file of `reward.function` is
parsed, never executed: `forge run` calls the function once before it starts.
"""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from forge.config.schema import (
    CLUSTER_ADDRESS,
    JUDGE_URL,
    SERVE_URL,
    Budget,
    Experiment,
    GrpoStage,
    PlayStage,
    SearchStage,
    SftStage,
    TrainStage,
    split_of,
)
from forge.config.schema.experiment import DEFAULT_EVENTS, WEBHOOK
from forge.config.schema.problems import (
    SHARED,
    DataSourceTable,
    ProblemsTable,
    SourceTable,
    find_shape_mistakes,
    is_hub_name,
)
from forge.config.schema.training import CHATML, names_file
from forge.records import Split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import (
        DataTable,
        KeyPath,
        ProblemSource,
        PromptTable,
        RewardTable,
        TomlValue,
    )
    from forge.config.schema.base import Table
    from forge.config.schema.build import DataBuild

LONGEST_VALUE = 60
"""Characters of a found value that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing to fix."""

    path: KeyPath
    text: str
    """`found 0; an integer, 1 or more`."""
    is_about_here: bool = False
    """True if a file or variable is missing on this machine; another one may have it."""


def show(value: TomlValue | PurePath | None) -> str:
    """A value as TOML writes it, cut to a length that fits a line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str | PurePath):
        text = f'"{value}"'
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, list):
        text = f"[{', '.join(show(item) for item in value)}]"
    elif isinstance(value, datetime | date | time):
        text = f"the {'date' if isinstance(value, date) else 'time'} {value}"
    else:
        text = str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def mistake(text: str, *path: str | int) -> Mistake:
    """A mistake about the key at `path`."""
    return Mistake(path=path, text=text)


def absent(text: str, *path: str | int) -> Mistake:
    """A mistake about a file or variable that is missing on this machine."""
    return Mistake(path=path, text=text, is_about_here=True)


PINNING = re.compile(r"\w+_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL")
"""Variables by which drivers choose GPUs. A child gets them from the plan."""


def check_devices(experiment: Experiment) -> Iterator[Mistake]:
    """GPUs for a role only if there are some, and shared evenly by the replicas."""
    devices, replicas = experiment.devices, experiment.serve.replicas
    wanted = {"train": devices.train, "serve": devices.serve, "judge": devices.judge}
    for role, num in wanted.items():
        if num and devices.gpus is None:
            text = f'found {show(num)}, and devices.gpus is absent; set it to "auto" or a list'
            yield mistake(text, "devices", role)
    if devices.serve == "auto" or not devices.serve:
        return
    if replicas > devices.serve and replicas % devices.serve:
        yield mistake(
            f"found {replicas} replicas on {devices.serve} GPUs; one per GPU, or the same number "
            "on each GPU",
            *("serve", "replicas"),
        )
    if devices.serve > replicas and devices.serve % replicas:
        text = f"found {devices.serve} GPUs for {replicas} replicas; the same number for each"
        yield mistake(text, "devices", "serve")


def check_pinning(experiment: Experiment) -> Iterator[Mistake]:
    """No `env` table chooses the GPUs of a child, which could belong to another process."""
    for table, env in (("serve", experiment.serve.env), ("judge", experiment.judge.env)):
        for name, value in env.items():
            if PINNING.fullmatch(name):
                text = f"found {show(value)}; remove it, devices.gpus chooses the GPUs"
                yield mistake(text, table, "env", name)


def check_urls(experiment: Experiment) -> Iterator[Mistake]:
    """Addresses of judge pools and model servers in a form that can be connected to, the keys that
    need a server, and stages that one cannot serve."""
    serve = experiment.serve
    for table, urls, form, words in (
        ("judge", experiment.judge.url, JUDGE_URL, "http://HOST:PORT or unix:/PATH"),
        ("serve", serve.url, SERVE_URL, "http://HOST:PORT[/PATH] or unix:/PATH"),
    ):
        for index, url in enumerate(urls):
            if not form.fullmatch(url):
                yield mistake(f'found "{url}"; {words}', table, "url", index)
    for name in ("api_key_env", "model_name"):
        if getattr(serve, name) and not serve.url:
            yield mistake("set without serve.url; it applies to that server", "serve", name)
    for index, stage in enumerate(experiment.stage):
        if serve.url and isinstance(stage, TrainStage):
            text = f'found "{stage.kind}" with serve.url, which takes no weights; eval or search'
            yield mistake(text, "stage", index, "kind")


def check_weights(experiment: Experiment) -> Iterator[Mistake]:
    """Weights in a trainer's memory need engines and weights of a kind that can be read there."""
    serve = experiment.serve
    if serve.weights == "files":
        return
    if serve.engine != "vllm" or serve.url or experiment.cluster.serve:
        found = "cluster.serve" if experiment.cluster.serve else f'serve.engine = "{serve.engine}"'
        found = "serve.url" if serve.url else found
        text = f'found "ipc" with {found}; "files", or serve.engine = "vllm" on this machine'
        yield mistake(text, "serve", "weights")
    if experiment.model.lora is not None or experiment.model.adapter is not None:
        text = 'found "ipc" with an adapter, which is a file of some MB; "files"'
        yield mistake(text, "serve", "weights")


def check_names(experiment: Experiment) -> Iterator[Mistake]:
    """Lists of names that have each once."""
    for table, key, names in (
        ("rollout", "tools", experiment.rollout.tools),
        ("judge", "also", experiment.judge.also),
        ("notify", "on", experiment.notify.on),
        ("sinks", "to", experiment.sinks.to),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield mistake(f'found "{name}" again; each once', table, key, index)


def check_outlets(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that exclude or need each other, and a variable that does not hold a URL here."""
    notify, sinks = experiment.notify, experiment.sinks
    if notify.webhook and notify.webhook_env:
        text = "set together with notify.webhook; exactly one of them"
        yield mistake(text, "notify", "webhook_env")
    elif notify.webhook_env:
        url = os.environ.get(notify.webhook_env)
        if url is None or not re.fullmatch(WEBHOOK, url):
            found = "which is not set" if url is None else "which is not http(s)://HOST[/PATH]"
            text = f'found "{notify.webhook_env}", {found}; a variable that holds the URL'
            yield absent(text, "notify", "webhook_env")
    if notify.on != list(DEFAULT_EVENTS) and not notify.is_configured:
        text = "set without command or webhook; set one of them to receive messages"
        yield mistake(text, "notify", "on")
    if sinks.wandb_mode != "online" and "wandb" not in sinks.to:
        yield mistake('set without "wandb" in sinks.to; both or neither', "sinks", "wandb_mode")


def check_cluster(experiment: Experiment) -> Iterator[Mistake]:
    """Roles on other nodes need an address, and no other place."""
    table = experiment.cluster
    if table.address is None:
        for name in ("judges", "serve", "train_nodes"):
            if found := getattr(table, name):
                text = f"found {show(found)} without cluster.address; both or neither"
                yield mistake(text, "cluster", name)
        return
    if not CLUSTER_ADDRESS.fullmatch(table.address):
        text = f'found "{table.address}"; auto, HOST:PORT or ray://HOST:PORT'
        yield mistake(text, "cluster", "address")
    if not table.judges and not table.serve and not table.train_nodes:
        text = "set, and nothing runs on its nodes; set judges, serve or train_nodes too"
        yield mistake(text, "cluster", "address")
    yield from _check_judges(experiment)
    if table.serve:
        yield from _check_engines(experiment)
    if table.train_nodes and all(stage.kind == "eval" for stage in experiment.stage):
        text = f"found {table.train_nodes}, and no stage trains; a stage of kind sft or grpo, or 0"
        yield mistake(text, "cluster", "train_nodes")


def _check_judges(experiment: Experiment) -> Iterator[Mistake]:
    table, judge = experiment.cluster, experiment.judge
    if table.judges and judge.url:
        text = f"found {table.judges} with judge.url; one of them"
        yield mistake(text, "cluster", "judges")
    if table.judges and experiment.devices.judge:
        text = f"found {show(experiment.devices.judge)} with cluster.judges; one of them"
        yield mistake(text, "devices", "judge")
    if table.judges and table.judge_on == "gpu" and experiment.eval.both_baselines:
        text = "found true; the second baseline is measured by judges of this machine only"
        yield mistake(text, "eval", "both_baselines")


def _check_engines(experiment: Experiment) -> Iterator[Mistake]:
    serve, devices = experiment.serve, experiment.devices
    if serve.url:
        yield mistake("found true with serve.url; one of them", "cluster", "serve")
    if devices.serve:
        text = f"found {show(devices.serve)} with cluster.serve; one of them"
        yield mistake(text, "devices", "serve")
    if serve.engine == "auto" and experiment.cluster.serve_on == "gpu":
        text = 'found "auto", and engines run on other nodes; "vllm", "llama" or "hf"'
        yield mistake(text, "serve", "engine")
    if experiment.cluster.share_gpus and serve.tensor_parallel > 1:
        text = f"found true with serve.tensor_parallel = {serve.tensor_parallel}; false, or 1"
        yield mistake(text, "cluster", "share_gpus")


CLONE = "git clone https://github.com/ScalingIntelligence/KernelBench"
"""Command that makes a missing directory of KernelBench."""


def check_problems(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that belong to the chosen sources of problems, and files that exist."""
    problems = experiment.problems
    yield from _check_single_keys("problems", problems, SourceTable)
    for index, part in enumerate(problems.parts()):
        at: KeyPath = ("problems",) if problems.sources is None else ("problems", "sources", index)
        if part.source == "generated":
            yield from _check_generated(part, at)
        else:
            yield from _check_files(part, at)
    if problems.has_generated:
        yield from _check_generator(experiment)
    else:
        yield from _check_no_generator(problems)
    if experiment.model.init and not problems.has_generated and not experiment.data.has_files:
        yield mistake(
            "found no generated problems with model.init, whose tokenizer learns from answers; "
            'set data.source = "file" for rows of a file, or start from model.path',
            *("problems", "source"),
        )
    yield from _check_levels(problems)
    yield from _check_sharing(problems)


def _check_single_keys(
    name: str, table: ProblemsTable | DataTable, single: type[Table]
) -> Iterator[Mistake]:
    """With several sources, no keys of a single one, and the generator once."""
    if table.sources is None:
        return
    for key, field in single.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if getattr(table, key) != default:
            yield mistake(f"set together with {name}.sources; set it in each of them", name, key)
    kinds = [part.source for part in table.sources]
    for index, kind in enumerate(kinds):
        if kind == "generated" and kind in kinds[:index]:
            text = 'found "generated" a second time; one of all sources'
            yield mistake(text, name, "sources", index, "source")


def _check_generated(part: ProblemSource, at: KeyPath) -> Iterator[Mistake]:
    for name in ("path", "shapes"):
        if getattr(part, name) is not None:
            text = f'found {"a path" if name == "path" else name}; allowed with source = "dir"'
            yield mistake(f'{text} or "file" only', *at, name)


def _check_generator(experiment: Experiment) -> Iterator[Mistake]:
    problems = experiment.problems
    cluster = experiment.cluster
    is_elsewhere = experiment.judge.url or (cluster.judges and cluster.judge_on == "gpu")
    if problems.sizes == "gpu" and not experiment.devices.judge and not is_elsewhere:
        yield mistake(
            'found "gpu" with judges on the CPU; "small", or set devices.judge and devices.gpus',
            *("problems", "sizes"),
        )
    if problems.num_reserved >= problems.num_problems:
        text = f"found {problems.num_reserved}; fewer than num_problems = {problems.num_problems}"
        yield mistake(text, "problems", "num_heldout")


def _check_no_generator(problems: ProblemsTable) -> Iterator[Mistake]:
    if problems.sizes != "small":
        yield mistake(
            f'found "{problems.sizes}"; allowed with source = "generated" only: problem files '
            "contain their sizes, and problems.overrides changes them",
            *("problems", "sizes"),
        )
    if problems.dtypes != ProblemsTable().dtypes:
        text = f'found {json.dumps(problems.dtypes)}; allowed with source = "generated" only'
        yield mistake(text, "problems", "dtypes")


def _check_files(part: ProblemSource, at: KeyPath) -> Iterator[Mistake]:
    path = part.path
    if not path:
        what = "the directory of the problems" if part.source == "dir" else "the rows"
        yield mistake(
            f'found source = "{part.source}" without path; set path to {what}', *at, "source"
        )
    elif part.source == "dir" and not path.is_dir():
        text = f'found "{path}", which is not a directory{_how_to_clone(path)}'
        yield absent(text, *at, "path")
    elif part.source == "dir" and not any(path.rglob("*.py")):
        yield absent(f'found "{path}", which has no *.py files', *at, "path")
    elif part.source == "file":
        yield from check_rows(path, *at, "path")
    if part.shapes is not None:
        for index, text in find_shape_mistakes(part.shapes):
            yield mistake(text, *at, "shapes", *(() if index is None else (index,)))


def _check_sharing(problems: ProblemsTable) -> Iterator[Mistake]:
    """Sharing is chosen only where nothing else holds problems out."""
    holds_out = {
        "generated problems, some of which are held out": problems.has_generated,
        "heldout_levels, which hold problems out": problems.heldout_levels is not None,
        'use = "heldout", which holds problems out': any(
            part.use == "heldout" for part in problems.parts()
        ),
    }
    for text in (text for text, does in holds_out.items() if does):
        if problems.num_heldout == SHARED:
            yield mistake(f'found "shared" with {text}; a number', "problems", "num_heldout")
            return


def _check_levels(problems: ProblemsTable) -> Iterator[Mistake]:
    both = sorted(set(problems.train_levels or ()) & set(problems.heldout_levels or ()))
    if both:
        text = f"found {both[0]}, which is in train_levels too; each level in one of them"
        yield mistake(text, "problems", "heldout_levels")
    for name in ("train_levels", "heldout_levels"):
        if getattr(problems, name) is not None and not problems.has_others:
            text = 'set with generated problems only; it divides those of source = "dir" or "file"'
            yield mistake(text, "problems", name)


def check_rows(path: Path, *at: str | int) -> Iterator[Mistake]:
    """A file or directory that exists, or the name of a data set on the hub."""
    if not path.exists() and not is_hub_name(str(path)):
        text = f'found "{path}", which does not exist; a file of rows, a directory or a hub name'
        settings = path.parent.with_suffix(".toml")
        is_built = path.suffix and settings.is_file()
        yield absent(f"{text}; `forge data build {settings}` writes it" if is_built else text, *at)


def _how_to_clone(path: Path) -> str:
    """Command that fetches KernelBench to where it is expected; empty for any other directory."""
    names = [part.lower() for part in path.parts]
    if "kernelbench" not in names:
        return ""
    return f"; {CLONE} {Path(*path.parts[: names.index('kernelbench') + 1])}"


def check_data(experiment: Experiment) -> Iterator[Mistake]:
    """A file of SFT rows exactly if a source is a file, and each file once."""
    data = experiment.data
    yield from _check_single_keys("data", data, DataSourceTable)
    paths: list[Path] = []
    for index, part in enumerate(data.parts()):
        at: KeyPath = ("data",) if data.sources is None else ("data", "sources", index)
        if part.source == "generated":
            if part.path:
                yield mistake('found a path; allowed with source = "file" only', *at, "path")
        elif not part.path:
            yield mistake('found source = "file" without path; set path to the rows', *at, "source")
        elif part.path in paths:
            text = f'found "{part.path}" a second time; one source, with both weights'
            yield mistake(text, *at, "path")
        else:
            paths.append(part.path)
            yield from check_rows(part.path, *at, "path")


PROMPT_FILES = ("system", "first", "feedback", "example")
"""Keys of `[prompt]` that name files."""


def check_build(build: DataBuild) -> Iterator[Mistake]:
    """Mistakes that concern several keys, or the files of this machine."""
    yield from check_rows(build.input.path, "input", "path")
    if build.filters.length and build.tokenizer.path is None:
        text = "missing; a model's directory, or filters.length = false"
        yield mistake(text, "tokenizer", "path")
    tokenizer = build.tokenizer.path
    if tokenizer is not None and not (tokenizer.is_dir() or is_hub_name(str(tokenizer))):
        text = f'found "{tokenizer}", which is not a directory; a directory or a hub name'
        yield absent(text, "tokenizer", "path")
    if build.filters.min_tokens > build.filters.max_tokens:
        text = f"found {build.filters.min_tokens}; at most filters.max_tokens"
        yield mistake(text, "filters", "min_tokens")
    for number, place in enumerate(build.heldout.paths):
        if not Path(place).exists():
            yield absent(f"{place}: no such file or directory", "heldout", "paths", number)
    yield from _check_prompt_files(build.prompt)
    if build.output.dir.exists() and not build.output.dir.is_dir():
        yield mistake(f"{build.output.dir}: no directory", "output", "dir")


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
    yield from _check_prompt_files(prompt)
    if experiment.model.init and prompt.thinking != TINY_TAG:
        text = f'found "{prompt.thinking}" with model.init, whose chat template knows "{TINY_TAG}"'
        yield mistake(f"{text} alone", "prompt", "thinking")


def _check_prompt_files(prompt: PromptTable) -> Iterator[Mistake]:
    for key in PROMPT_FILES:
        path: Path | bool | None = getattr(prompt, key)
        if isinstance(path, Path) and not path.is_file():
            yield absent(f'found "{path}", which is not a file; a text file', "prompt", key)


def check_order(experiment: Experiment) -> Iterator[Mistake]:
    """Stages that need answers, a model that can write kernels, or more problems."""
    is_random = experiment.model.init is not None and experiment.model.adapter is None
    if not experiment.stage:
        yield mistake("found none; one [[stage]] or more, or [[round]]", "stage")
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, SftStage):
            is_random = is_random and stage.source != "data"
            yield from _check_own_rows(experiment, index, stage)
            needs_generated = stage.source == "data" and experiment.data.has_generated
            if needs_generated and not experiment.problems.has_generated:
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
        if isinstance(stage, SearchStage):
            budget = Budget.parse(stage.budget)
            tokens = budget.tokens
            if budget.seconds == 0:
                text = f"found {stage.budget}; above 0, such as 20m"
                yield mistake(text, "stage", index, "budget")
            longest = experiment.rollout.max_completion_tokens
            if tokens is not None and tokens < longest:
                text = f"found {stage.budget}; at least one answer, which may have "
                text += f"rollout.max_completion_tokens = {longest}"
                yield mistake(text, "stage", index, "budget")
        heldout = experiment.problems.num_reserved
        wanted = None
        if isinstance(stage, PlayStage) and split_of(stage) is Split.HELDOUT:
            wanted = stage.num_problems
        if not experiment.problems.has_others and wanted and wanted > heldout:
            text = f"found {wanted}; at most problems.num_heldout = {heldout}"
            yield mistake(text, "stage", index, "num_problems")


OWN_KEYS = ("best_per_problem", "min_speedup")
"""Keys of an sft stage that trains on the run's own answers."""


def _check_own_rows(experiment: Experiment, index: int, stage: SftStage) -> Iterator[Mistake]:
    """An earlier stage whose answers are rows, and no key without an effect."""
    if stage.source == "data":
        for key in OWN_KEYS:
            if (found := getattr(stage, key)) != type(stage).model_fields[key].default:
                text = f'found {show(found)} with source = "data"; source = "search" or "rollouts"'
                yield mistake(text, "stage", index, key)
        return
    before = experiment.stage[:index]
    searched = any(isinstance(each, SearchStage) and each.problems == "train" for each in before)
    if searched or (stage.source == "rollouts" and any(isinstance(e, GrpoStage) for e in before)):
        return
    needed = 'a [[stage]] with kind = "search" and problems = "train"'
    needed += " or a grpo stage" if stage.source == "rollouts" else ""
    text = f'found "{stage.source}", and no stage before it has such answers; {needed} before it'
    yield mistake(text, "stage", index, "source")


def check_training(experiment: Experiment) -> Iterator[Mistake]:
    """Steps, learning rates and parallelism of each training stage."""
    for index, stage in enumerate(experiment.stage):
        if not isinstance(stage, TrainStage):
            continue
        yield from _check_steps(stage, index)
        yield from _check_learning_rate(stage, index)
        if isinstance(stage, SftStage) and stage.loss_turns == "all":
            yield from _check_loss_turns(experiment, stage, index)
        if isinstance(stage, GrpoStage):
            yield from _check_ratio(stage, index)
        if experiment.model.quantize and stage.parallel == "fsdp2":
            text = 'found "fsdp2" with [model.quantize], whose 4-bit weights cannot be sharded;'
            yield mistake(f'{text} "ddp" or "auto"', "stage", index, "parallel")


def _check_loss_turns(experiment: Experiment, stage: SftStage, index: int) -> Iterator[Mistake]:
    """All answers of a conversation are trained only where they are meant to be right."""
    data, text = experiment.data, ""
    if stage.source != "data":
        text = f'source = "{stage.source}", whose earlier answers are those improved on; "last"'
    elif data.has_generated and data.repair_share:
        text = "generated repairs, whose earlier answers are wrong on purpose; "
        text += '"last", or data.repair_share = 0'
    if text:
        yield mistake(f'found "all" with {text}', "stage", index, "loss_turns")


def _check_ratio(stage: GrpoStage, index: int) -> Iterator[Mistake]:
    """Bounds of the ratio that the loss uses."""
    for name in ("clip_low", "delta"):
        found = getattr(stage, name)
        if stage.loss == "cispo" and found != type(stage).model_fields[name].default:
            text = f'found {found:g} with loss = "cispo", whose only bound is clip_high; remove it'
            yield mistake(text, "stage", index, name)
        elif name == "delta" and found is not None and found <= 1 + stage.clip_high:
            text = f"found {found:g}; above 1 + clip_high = {1 + stage.clip_high:g}"
            yield mistake(text, "stage", index, name)


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


REPLACED = (
    "compiled", "correct", "own_share", "speedup", "shape", "improvement", "speedup_floor",
    "speedup_cap", "rejected", "compile_error",
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


def check_reward(experiment: Experiment) -> Iterator[Mistake]:
    """No reward for a share that is always whole, for a first answer that is slow on purpose, or
    for no speed at all."""
    reward, rollout, policy = experiment.reward, experiment.rollout, experiment.judge.policy
    if reward.own_share and policy == "own":
        text = f'found {reward.own_share:g} with judge.policy = "own", where own kernels do all'
        yield mistake(f'{text} work; "hybrid", or 0', "reward", "own_share")
    if reward.speedup_floor >= reward.speedup_cap:
        text = f"found {reward.speedup_floor:g}; below reward.speedup_cap = {reward.speedup_cap:g}"
        yield mistake(text, "reward", "speedup_floor")
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


CHECKS = (
    check_model,
    check_tiny,
    check_problems,
    check_data,
    check_prompt,
    check_lengths,
    check_order,
    check_training,
    check_devices,
    check_cluster,
    check_function,
    check_reward,
    check_urls,
    check_overlap,
    check_pinning,
    check_names,
    check_outlets,
    check_weights,
)


def check(experiment: Experiment, *, is_here: bool = True) -> list[Mistake]:
    """All mistakes between keys.

    Args:
        experiment: valid key by key, without rounds.
        is_here: False if it will run on another machine, so missing files are not mistakes.
    """
    found = chain.from_iterable(part(experiment) for part in CHECKS)
    return [each for each in found if is_here or not each.is_about_here]
