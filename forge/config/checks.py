"""All checks between the keys of a valid experiment, and those of the settings of `forge data
build`. Called by `load`.

A check is a row: whether the mistake is there, its key as in `--set`, and what was found and is
allowed; with HERE it is about a file or a variable of this machine, and another one may have it.
Checks ask the file system and the environment only; the machine's GPUs, memory and disk are checked
by `runner.plan`. The file of `reward.function` is parsed, never executed: `forge run` calls the
function once before it starts.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from forge.config import schema
from forge.config.schema.build import DataBuild
from forge.records import Split

Rows: TypeAlias = "Iterator[tuple[Any, str, str] | tuple[Any, str, str, bool]]"
HERE = True
LONGEST_VALUE = 60
CLUSTER_ADDRESS = re.compile(r"auto|(ray://)?(\[[0-9a-fA-F:]+\]|[^/\s:]+):\d{1,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    path: schema.KeyPath
    text: str
    """`found 0; an integer, 1 or more`."""


def show(value: schema.TomlValue | PurePath | None) -> str:
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


def check(experiment: schema.Experiment, *, is_here: bool = True) -> list[Mistake]:
    """All mistakes between keys. `experiment`: valid key by key, without rounds. `is_here`: False
    if it will run on another machine, so missing files are not mistakes."""
    return [each for part in CHECKS for each in found_in(part(experiment), is_here=is_here)]


def found_in(rows: Rows, *, is_here: bool = True) -> Iterator[Mistake]:
    for is_there, key, text, *here in rows:
        if is_there and (is_here or not here):
            parts = (int(part) if part.isdecimal() else part for part in key.split("."))
            yield Mistake(path=tuple(parts), text=text)


def _is_set(table: schema.Table, key: str) -> bool:
    """True for another value than the default, which a resolved experiment lists too."""
    field = type(table).model_fields[key]
    default = field.get_default(call_default_factory=True, validated_data={})
    return getattr(table, key) != default


PINNING = re.compile(r"\w+_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL")
"""Variables by which drivers choose GPUs. A child gets them from the plan."""


def check_devices(x: schema.Experiment) -> Rows:
    """GPUs for a role only if there are some, shared evenly by the replicas, and chosen by the plan
    alone: a GPU that `env` names could belong to another process."""
    for role in ("train", "serve", "judge"):
        num = getattr(x.devices, role)
        text = f'found {show(num)}, and devices.gpus is absent; set it to "auto" or a list'
        yield num and x.devices.gpus is None, f"devices.{role}", text
    gpus, replicas = x.devices.serve, x.serve.replicas
    if gpus != "auto" and gpus:
        text = f"found {replicas} replicas on {gpus} GPUs; one per GPU, or the same number on each "
        yield replicas > gpus and replicas % gpus, "serve.replicas", f"{text}GPU"
        text = f"found {gpus} GPUs for {replicas} replicas; the same number for each"
        yield gpus > replicas and gpus % replicas, "devices.serve", text
    for table, env in (("serve", x.serve.env), ("judge", x.judge.env)):
        for name, value in env.items():
            text = f"found {show(value)}; remove it, devices.gpus chooses the GPUs"
            yield PINNING.fullmatch(name), f"{table}.env.{name}", text


def check_servers(x: schema.Experiment) -> Rows:
    """Addresses of judge pools and model servers in a form that can be connected to, the keys that
    need a server, and weights in a trainer's memory, which few engines can read."""
    serve, model = x.serve, x.model
    for table, urls, form, words in (
        ("judge", x.judge.url, schema.JUDGE_URL, "http://HOST:PORT or unix:/PATH"),
        ("serve", serve.url, schema.SERVE_URL, "http://HOST:PORT[/PATH] or unix:/PATH"),
    ):
        for index, url in enumerate(urls):
            yield not form.fullmatch(url), f"{table}.url.{index}", f'found "{url}"; {words}'
    for name in ("api_key_env", "model_name"):
        text = "set without serve.url; it applies to that server"
        yield getattr(serve, name) and not serve.url, f"serve.{name}", text
    if serve.weights == "ipc":
        found = "cluster.serve" if x.cluster.serve else f'serve.engine = "{serve.engine}"'
        found = "serve.url" if serve.url else found
        text = f'found "ipc" with {found}; "files", or serve.engine = "vllm" on this machine'
        yield serve.engine != "vllm" or serve.url or x.cluster.serve, "serve.weights", text
        text = 'found "ipc" with an adapter, which is a file of some MB; "files"'
        yield model.lora is not None or model.adapter is not None, "serve.weights", text
    python = serve.python
    text = f'found "{python}", which is not a file; a Python interpreter'
    yield python and not python.is_file(), "serve.python", text, HERE


def check_outlets(x: schema.Experiment) -> Rows:
    """Keys that exclude or need each other, names that are in a list once, and a variable that does
    not hold a URL here."""
    for key, names in (
        ("rollout.tools", x.rollout.tools),
        ("judge.also", x.judge.also),
        ("notify.on", x.notify.on),
        ("sinks.to", x.sinks.to),
    ):
        for index, name in enumerate(names):
            yield name in names[:index], f"{key}.{index}", f'found "{name}" again; each once'
    notify, sinks, variable = x.notify, x.sinks, x.notify.webhook_env
    text = "set together with notify.webhook; exactly one of them"
    yield notify.webhook and variable, "notify.webhook_env", text
    if variable and not notify.webhook:
        url = os.environ.get(variable)
        found = "which is not set" if url is None else "which is not http(s)://HOST[/PATH]"
        text = f'found "{variable}", {found}; a variable that holds the URL'
        yield not re.fullmatch(schema.WEBHOOK, url or ""), "notify.webhook_env", text, HERE
    text = "set without command or webhook; set one of them to receive messages"
    yield notify.on != list(schema.DEFAULT_EVENTS) and not notify.is_configured, "notify.on", text
    text = 'set without "wandb" in sinks.to; both or neither'
    yield sinks.wandb_mode != "online" and "wandb" not in sinks.to, "sinks.wandb_mode", text


def check_cluster(x: schema.Experiment) -> Rows:
    """Roles on other nodes need an address, and no other place."""
    table, serve, devices = x.cluster, x.serve, x.devices
    if table.address is None:
        for name in ("judges", "serve", "train_nodes"):
            found = getattr(table, name)
            text = f"found {show(found)} without cluster.address; both or neither"
            yield found, f"cluster.{name}", text
        return
    judges, trains = table.judges, any(stage.kind != "eval" for stage in x.stage)
    is_engine_unknown = serve.engine == "auto" and table.serve_on == "gpu"
    yield from [
        (not CLUSTER_ADDRESS.fullmatch(table.address), "cluster.address",
         f'found "{table.address}"; auto, HOST:PORT or ray://HOST:PORT'),
        (not (judges or table.serve or table.train_nodes), "cluster.address",
         "set, and nothing runs on its nodes; set judges, serve or train_nodes too"),
        (judges and x.judge.url, "cluster.judges",
         f"found {judges} with judge.url; one of them"),
        (judges and devices.judge, "devices.judge",
         f"found {show(devices.judge)} with cluster.judges; one of them"),
        (judges and table.judge_on == "gpu" and x.eval.both_baselines, "eval.both_baselines",
         "found true; the second baseline is measured by judges of this machine only"),
        (table.serve and serve.url, "cluster.serve", "found true with serve.url; one of them"),
        (table.serve and devices.serve, "devices.serve",
         f"found {show(devices.serve)} with cluster.serve; one of them"),
        (table.serve and is_engine_unknown, "serve.engine",
         'found "auto", and engines run on other nodes; "vllm", "llama" or "hf"'),
        (table.serve and table.share_gpus and serve.tensor_parallel > 1, "cluster.share_gpus",
         f"found true with serve.tensor_parallel = {serve.tensor_parallel}; false, or 1"),
        (table.train_nodes and not trains, "cluster.train_nodes",
         f"found {table.train_nodes}, and no stage trains; a stage of kind sft or grpo, or 0"),
    ]  # fmt: skip


CLONE = "git clone https://github.com/ScalingIntelligence/KernelBench"


def check_problems(x: schema.Experiment) -> Rows:
    """Keys that belong to the chosen sources of problems, and files that exist."""
    problems = x.problems
    yield from _single_keys("problems", problems, schema.SourceTable)
    for index, part in enumerate(problems.parts()):
        at = problems.key_of(index)
        for name, found in (("path", "a path"), ("shapes", "shapes")):
            text = f'found {found}; allowed with source = "dir" or "file" only'
            is_given = part.source == "generated" and getattr(part, name) is not None
            yield is_given, f"{at}{name}", text
        if part.source != "generated":
            yield from _files(part, at)
    elsewhere = x.judge.url or (x.cluster.judges and x.cluster.judge_on == "gpu")
    has_gpus = x.devices.judge or elsewhere
    is_generated, reserved = problems.has_generated, problems.num_reserved
    yield from [
        (is_generated and problems.sizes == "gpu" and not has_gpus, "problems.sizes",
         'found "gpu" with judges on the CPU; "small", or set devices.judge and devices.gpus'),
        (is_generated and reserved >= problems.num_problems, "problems.num_heldout",
         f"found {reserved}; fewer than num_problems = {problems.num_problems}"),
        (not is_generated and _is_set(problems, "sizes"), "problems.sizes",
         (f'found "{problems.sizes}"; allowed with source = "generated" only: problem files '
         "contain their sizes, and problems.overrides changes them")),
        (not is_generated and _is_set(problems, "dtypes"), "problems.dtypes",
         f'found {json.dumps(problems.dtypes)}; allowed with source = "generated" only'),
        (x.model.init and not is_generated and not x.data.has_files, "problems.source",
         ("found no generated problems with model.init, whose tokenizer learns from answers; "
         'set data.source = "file" for rows of a file, or start from model.path')),
    ]  # fmt: skip
    both = sorted(set(problems.train_levels or ()) & set(problems.heldout_levels or ()))
    text = f"found {both and both[0]}, which is in train_levels too; each level in one of them"
    yield both, "problems.heldout_levels", text
    for name in ("train_levels", "heldout_levels"):
        text = 'set with generated problems only; it divides those of source = "dir" or "file"'
        is_without = getattr(problems, name) is not None and not problems.has_others
        yield is_without, f"problems.{name}", text
    holds_out = {  # sharing is chosen only where nothing else holds problems out
        "generated problems, some of which are held out": is_generated,
        "heldout_levels, which hold problems out": problems.heldout_levels is not None,
        'use = "heldout", which holds problems out': any(
            part.use == "heldout" for part in problems.parts()
        ),
    }
    why = next((text for text, does in holds_out.items() if does), None)
    text = f'found "shared" with {why}; a number'
    yield why and problems.num_heldout == schema.SHARED, "problems.num_heldout", text


def _single_keys(
    name: str, table: schema.ProblemsTable | schema.DataTable, single: type[schema.Table]
) -> Rows:
    """With several sources, no keys of a single one, and the generator once."""
    if table.sources is None:
        return
    for key in single.model_fields:
        text = f"set together with {name}.sources; set it in each of them"
        yield _is_set(table, key), f"{name}.{key}", text
    kinds = [part.source for part in table.sources]
    for index, kind in enumerate(kinds):
        text = 'found "generated" a second time; one of all sources'
        is_again = kind == "generated" and kind in kinds[:index]
        yield is_again, f"{name}.sources.{index}.source", text


def _files(part: schema.ProblemSource, at: str) -> Rows:
    path = part.path
    if not path:
        what = "the directory of the problems" if part.source == "dir" else "the rows"
        text = f'found source = "{part.source}" without path; set path to {what}'
        yield True, f"{at}source", text
    elif part.source == "file":
        yield from _rows(path, f"{at}path")
    elif not path.is_dir():
        text = f'found "{path}", which is not a directory{_how_to_clone(path)}'
        yield True, f"{at}path", text, HERE
    else:
        text = f'found "{path}", which has no *.py files'
        yield not any(path.rglob("*.py")), f"{at}path", text, HERE
    for index, text in schema.find_shape_mistakes(part.shapes) if part.shapes is not None else ():
        yield True, f"{at}shapes{'' if index is None else f'.{index}'}", text


def _rows(path: Path, key: str) -> Rows:
    """A file or directory that exists, or the name of a data set on the hub."""
    text = f'found "{path}", which does not exist; a file of rows, a directory or a hub name'
    settings = path.parent.parent / f"{path.parent.name}.toml"
    if path.suffix and settings.is_file():
        text = f"{text}; `forge data build {settings}` writes it"
    yield not path.exists() and not schema.is_hub_name(str(path)), key, text, HERE


def _how_to_clone(path: Path) -> str:
    """Command that fetches KernelBench to where it is expected; empty for any other directory."""
    names = [part.lower() for part in path.parts]
    if "kernelbench" not in names:
        return ""
    return f"; {CLONE} {Path(*path.parts[: names.index('kernelbench') + 1])}"


def check_data(x: schema.Experiment) -> Rows:
    """A file of SFT rows exactly if a source is a file, and each file once."""
    yield from _single_keys("data", x.data, schema.DataSourceTable)
    paths = [part.path for part in x.data.parts()]
    for index, part in enumerate(x.data.parts()):
        key, path = f"{x.data.key_of(index)}path", part.path
        if part.source == "generated":
            yield path, key, 'found a path; allowed with source = "file" only'
        elif not path:
            text = 'found source = "file" without path; set path to the rows'
            yield True, f"{x.data.key_of(index)}source", text
        elif path in paths[:index]:
            yield True, key, f'found "{path}" a second time; one source, with both weights'
        else:
            yield from _rows(path, key)


PROMPT_FILES = ("system", "first", "feedback", "example")


def check_build(build: DataBuild) -> Rows:
    """Mistakes that concern several keys, or the files of this machine."""
    filters, tokenizer, out = build.filters, build.tokenizer.path, build.output.dir
    is_there = tokenizer is None or tokenizer.is_dir() or schema.is_hub_name(str(tokenizer))
    yield from _rows(build.input.path, "input.path")
    yield from [
        (filters.length and tokenizer is None, "tokenizer.path",
         "missing; a model's directory, or filters.length = false"),
        (not is_there, "tokenizer.path",
         f'found "{tokenizer}", which is not a directory; a directory or a hub name'),
        (filters.min_tokens > filters.max_tokens, "filters.min_tokens",
         f"found {filters.min_tokens}; at most filters.max_tokens"),
        (out.exists() and not out.is_dir(), "output.dir", f"{out}: no directory"),
    ]  # fmt: skip
    for number, place in enumerate(build.heldout.paths):
        text = f"{place}: no such file or directory"
        yield not Path(place).exists(), f"heldout.paths.{number}", text
    yield from _prompt_files(build.prompt)


HUB_NAME = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b")
"""`name` or `owner/name`; anything else can only be a directory."""


def check_model(x: schema.Experiment) -> Rows:
    """One source of weights, which exists; quantized weights only under an adapter; and sizes of
    the random model that attention can use."""
    model, tiny, template = x.model, x.model.tiny, x.model.chat_template
    path, adapter = Path(model.path or "").expanduser(), model.adapter
    is_absent = False
    if model.path and not model.is_gguf and not HUB_NAME.fullmatch(model.path):
        is_absent = not Path(model.run_and_step[0]).expanduser().is_dir()
    is_random, is_quantized = model.init is not None, model.quantize is not None
    yield from [
        (is_random and model.path, "model.path",
         "found both init and path; set exactly one of them"),
        (model.is_absent and not x.serve.url, "model", ("found no model to start from; "
         'set init = "tiny" for a random one, or path = a directory or a hub name')),
        (model.is_gguf and not path.exists() and model.revision is None, "model.path",
         f'found "{model.path}", which is not there; a file', HERE),
        (is_absent, "model.path", (f'found "{model.path}", which is not a directory; a directory, '
         "RUN or RUN:STEP, a GGUF file (.gguf) or a hub name"), HERE),
        (adapter and not (adapter / "adapter_config.json").is_file(), "model.adapter",
         f'found "{adapter}", which has no adapter_config.json; a PEFT adapter', HERE),
        (schema.names_file(template) and not Path(template).is_file(), "model.chat_template",
         f'found "{template}", which is not a file; "{schema.CHATML}" or a jinja file', HERE),
        (template is not None and model.path is None, "model.chat_template",
         "set without model.path, whose template it replaces"),
        (is_quantized and not model.lora, "model.quantize",
         "set without [model.lora]; 4-bit weights are frozen, only an adapter can be trained"),
        (is_quantized and model.dtype == "float32", "model.dtype",
         'found "float32" with [model.quantize], which computes in bfloat16; "bfloat16" or "auto"'),
        (is_random and tiny.head_dim % 2, "model.tiny.head_dim",
         f"found {tiny.head_dim}; an even number, for rotary positions"),
        (is_random and tiny.num_heads % tiny.num_kv_heads, "model.tiny.num_kv_heads",
         f"found {tiny.num_kv_heads}; a divisor of num_heads = {tiny.num_heads}"),
    ]  # fmt: skip


TINY_TAG = "think"
"""Tag in the vocabulary and the chat template of a random model."""


def check_prompt(x: schema.Experiment) -> Rows:
    """A context that holds a completion, in a model that has so many positions; files that exist;
    and no other tag of thinking than the tokenizer's."""
    context, completion = x.serve.context_tokens, x.rollout.max_completion_tokens
    limit, is_random = x.model.tiny.max_context_tokens, x.model.init is not None
    most, thinking = f"at most model.tiny.max_context_tokens = {limit}", x.prompt.thinking
    yield from [
        (context <= completion, "serve.context_tokens",
         (f"found {context}; more than rollout.max_completion_tokens = {completion}, since prompt "
         "and completion share it")),
        (is_random and context > limit, "serve.context_tokens", f"found {context}; {most}"),
        (is_random and thinking != TINY_TAG, "prompt.thinking",
         f'found "{thinking}" with model.init, whose chat template knows "{TINY_TAG}" alone'),
    ]  # fmt: skip
    for index, stage in enumerate(x.stage):
        if is_random and isinstance(stage, schema.SftStage):
            text = f"found {stage.max_length}; {most}"
            yield stage.max_length > limit, f"stage.{index}.max_length", text
    yield from _prompt_files(x.prompt)


def _prompt_files(prompt: schema.PromptTable) -> Rows:
    for key in PROMPT_FILES:
        path: Path | bool | None = getattr(prompt, key)
        text = f'found "{path}", which is not a file; a text file'
        yield isinstance(path, Path) and not path.is_file(), f"prompt.{key}", text, HERE


def check_stages(x: schema.Experiment) -> Rows:
    """Stages that need answers, a model that can write kernels, or more problems; and the keys of
    each stage."""
    yield not x.stage, "stage", "found none; one [[stage]] or more, or [[round]]"
    is_random = x.model.init is not None and x.model.adapter is None
    for index, stage in enumerate(x.stage):
        at, wanted, heldout = f"stage.{index}", None, x.problems.num_reserved
        if isinstance(stage, schema.TrainStage):
            yield from _training(x, stage, at)
        if isinstance(stage, schema.SftStage):
            is_random = is_random and stage.source != "data"
            yield from _sft(x, stage, index)
        elif isinstance(stage, schema.GrpoStage):
            text = "found grpo on random weights, where every group is flat and nothing is "
            text += 'learned; put a [[stage]] with kind = "sft" before it, or start from [model] '
            yield is_random, f"{at}.kind", f"{text}path"
            yield from _grpo(x, stage, at)
        elif isinstance(stage, schema.SearchStage):
            yield from _search(x, stage, at)
        if isinstance(stage, schema.PlayStage) and schema.split_of(stage) is Split.HELDOUT:
            wanted = stage.num_problems
        text = f"found {wanted}; at most problems.num_heldout = {heldout}"
        is_many = not x.problems.has_others and wanted and wanted > heldout
        yield is_many, f"{at}.num_problems", text


def _training(x: schema.Experiment, stage: schema.SftStage | schema.GrpoStage, at: str) -> Rows:
    """Steps, learning rates and parallelism."""
    epochs = stage.epochs if isinstance(stage, schema.SftStage) else None
    rate, least = stage.learning_rate, stage.min_learning_rate
    is_sharded = x.model.quantize is not None and stage.parallel == "fsdp2"
    yield from [
        (x.serve.url, f"{at}.kind",
         f'found "{stage.kind}" with serve.url, which takes no weights; eval or search'),
        (stage.steps and epochs, at, "found both steps and epochs; set exactly one of them"),
        (not stage.steps and not epochs, at,
         "found neither steps nor epochs; set exactly one of them"),
        (stage.steps and stage.warmup_steps > stage.steps, f"{at}.warmup_steps",
         f"found {stage.warmup_steps}; at most steps = {stage.steps}"),
        (least > rate, f"{at}.min_learning_rate", f"found {least}; at most learning_rate = {rate}"),
        (least and stage.schedule == "constant", f"{at}.min_learning_rate",
         (f'found {least} with schedule = "constant", which does not decay; set schedule to '
         '"linear" or "cosine"')),
        (is_sharded, f"{at}.parallel", ('found "fsdp2" with [model.quantize], whose 4-bit weights '
         'cannot be sharded; "ddp" or "auto"')),
    ]  # fmt: skip


OWN_KEYS = ("best_per_problem", "min_speedup")


def _sft(x: schema.Experiment, stage: schema.SftStage, index: int) -> Rows:
    """Answers to train on: those of the data, or of an earlier stage; no key without an effect."""
    at, source, data = f"stage.{index}", stage.source, x.data
    text = 'found "sft", which needs answers, and only generated problems have some; set '
    text += 'data.source = "file" for rows of a file, or use grpo or eval with a model that can '
    is_empty = data.has_generated and not x.problems.has_generated
    yield source == "data" and is_empty, f"{at}.kind", f"{text}already write kernels"
    if stage.loss_turns == "all":  # only where all answers of a conversation are meant to be right
        text = f'source = "{source}", whose earlier answers are those improved on; "last"'
        yield source != "data", f"{at}.loss_turns", f'found "all" with {text}'
        is_repaired = data.has_generated and data.repair_share
        text = 'found "all" with generated repairs, whose earlier answers are wrong on purpose; '
        text += '"last", or data.repair_share = 0'
        yield source == "data" and is_repaired, f"{at}.loss_turns", text
    if source == "data":
        for key in OWN_KEYS:
            found = show(getattr(stage, key))
            text = f'found {found} with source = "data"; source = "search" or "rollouts"'
            yield _is_set(stage, key), f"{at}.{key}", text
        return
    before = x.stage[:index]
    has_answers = any(
        isinstance(one, schema.SearchStage) and one.problems == "train" for one in before
    )
    has_rollouts = source == "rollouts" and any(isinstance(one, schema.GrpoStage) for one in before)
    needed = 'a [[stage]] with kind = "search" and problems = "train"'
    needed += " or a grpo stage" if source == "rollouts" else ""
    text = f'found "{source}", and no stage before it has such answers; {needed} before it'
    yield not has_answers and not has_rollouts, f"{at}.source", text


def _grpo(x: schema.Experiment, stage: schema.GrpoStage, at: str) -> Rows:
    """Bounds of the ratio that the loss uses, and publishes that the trainer need not wait for."""
    for name in ("clip_low", "delta"):
        text = f"found {getattr(stage, name) or 0:g} with "
        text += 'loss = "cispo", whose only bound is clip_high; remove it'
        yield stage.loss == "cispo" and _is_set(stage, name), f"{at}.{name}", text
    delta, least = stage.delta, 1 + stage.clip_high
    if delta is not None and stage.loss != "cispo":
        text = f"found {delta:g}; above 1 + clip_high = {least:g}"
        yield delta <= least, f"{at}.delta", text
    steps = x.rollout.max_staleness + 1
    text = f"found {stage.publish_every}; at most rollout.max_staleness + 1 = {steps}, or the "
    text += "trainer waits for its own publish"
    yield stage.publish_every > steps, f"{at}.publish_every", text


def _search(x: schema.Experiment, stage: schema.SearchStage, at: str) -> Rows:
    budget, longest = schema.Budget.parse(stage.budget), x.rollout.max_completion_tokens
    text = f"found {stage.budget}; at least one answer, which may have "
    text += f"rollout.max_completion_tokens = {longest}"
    yield budget.unit == "tokens" and budget.amount < longest, f"{at}.budget", text


OWN = ("function", "function_per", "function_timeout_s", "stop_at_speedup")
"""Keys that count beside a function, which replaces all weights."""
OPTIONS = ("function_per", "function_timeout_s")


def check_function(x: schema.Experiment) -> Rows:
    """A file that defines the function, and no key without an effect."""
    reward = x.reward
    if reward.function is None:
        for key in OPTIONS:
            text = f"found {show(getattr(reward, key))} without reward.function; both or none"
            yield _is_set(reward, key), f"reward.{key}", text
        return
    for key in sorted(type(reward).model_fields.keys() - OWN):
        text = f"found {show(getattr(reward, key))} with reward.function, whose terms are the"
        text = f"{text} whole reward; remove one of them"
        yield _is_set(reward, key), f"reward.{key}", text
    file, _, name = reward.function.rpartition(":")
    text = f'found "{file}", which is not a file; a Python file with the function {name}'
    fault = _fault(Path(file), name) if Path(file).is_file() else text
    yield fault, "reward.function", fault, HERE


def check_reward(x: schema.Experiment) -> Rows:
    """No reward for a share that is always whole, for a first answer that is slow on purpose, or
    for no speed at all; and no older group than may be trained on."""
    reward, rollout = x.reward, x.rollout
    later, steps = sum(rollout.gamma**n for n in range(1, rollout.max_turns)), rollout.max_staleness
    most = f"at most {reward.speedup / (later or 1):.3g}: reward.speedup = {reward.speedup:g}"
    yield from [
        (reward.own_share and x.judge.policy == "own", "reward.own_share",
         (f'found {reward.own_share:g} with judge.policy = "own", where own kernels do all work; '
         '"hybrid", or 0')),
        (reward.speedup_floor >= reward.speedup_cap, "reward.speedup_floor",
         f"found {reward.speedup_floor:g}; below reward.speedup_cap = {reward.speedup_cap:g}"),
        (reward.improvement * later > reward.speedup, "reward.improvement",
         (f"found {reward.improvement:g}; {most} over what rollout.gamma = {rollout.gamma:g} "
         "leaves of later turns, or a slow first answer would earn more than a fast one")),
        (rollout.replay > steps + 1, "rollout.replay",
         (f"found {rollout.replay}; at most rollout.max_staleness + 1 = {steps + 1}, since an "
         "older group may not be trained on")),
    ]  # fmt: skip


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
    check_model, check_problems, check_data, check_prompt, check_stages, check_devices,
    check_servers, check_cluster, check_function, check_reward, check_outlets,
)  # fmt: skip
