"""Requirements of a run: disk, engine, problems, packages, sinks, and limits of the trainer."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.config import schema
from forge.data.chat import ChatTemplate
from forge.data.generator import is_ample
from forge.data.problems import in_split, load_problems
from forge.data.prompts.prompt_set import PromptSet, make_prompts
from forge.data.sources.splitting import digest_of
from forge.data.template import KEY, Template, absent_template, text_of, try_template
from forge.errors import ConfigError, MachineError
from forge.evalpool.cards import require_target
from forge.evalpool.site_packages import require_installed
from forge.records import Message, Problem, Split
from forge.rollout.prompter import TemplatePrompter
from forge.runner.plan.machine import Machine
from forge.runner.plan.placement import (
    Placement,
    needs_serving,
    num_ranks,
    turns_played,
    turns_trained,
)
from forge.runner.plan.shape import llama_refusal, model_shape
from forge.runner.weights.model_dir import config_dir, lora_rank
from forge.serve.engines import ENGINES, check_adapters, check_engine
from forge.train.gguf import read_gguf
from forge.train.refusals import OWN_CODE, has_own_code, is_mixture, missing_package, refusals
from forge.views.text import count, gigabytes

SHARE = f'problems.num_heldout = "{schema.SHARED}", by which evaluations are of what is trained on'

NO_SOURCE = Problem(problem_id="", source="", family="", level=0, split=Split.GRPO)
"""Its prompt is shorter than that of any problem."""


def require_disk(experiment: schema.Experiment, machine: Machine) -> None:
    store = experiment.store
    if machine.free_disk_bytes < store.min_free_bytes:
        free = gigabytes(machine.free_disk_bytes, places=2)
        least = gigabytes(store.min_free_bytes, places=2)
        raise MachineError(
            f"{store.dir}: {free} of disk are free; a run stops below store.min_free_bytes = "
            f"{least}. Free some disk, or start a new run elsewhere with --store DIR"
        )


def require_engine(experiment: schema.Experiment, machine: Machine, placement: Placement) -> None:
    """Raises MachineError or ConfigError if the engine is missing or cannot do the job. On this
    machine its interpreter is asked for versions and builds too."""
    serve = experiment.serve
    if not needs_serving(experiment) or serve.url:
        return
    folder = config_dir(experiment.model)
    if folder is not None and has_own_code(folder):
        raise ConfigError(f"model.path: found {OWN_CODE}; no engine runs it")
    chosen = serve.model_copy(update={"engine": placement.engine})
    check_adapters(chosen, max_lora_rank=lora_rank(experiment.model))
    refused = llama_refusal(experiment.model, context_tokens=serve.context_tokens)
    if placement.engine == "llama" and refused:
        raise ConfigError(f'serve.engine = "llama": {refused}')
    if experiment.cluster.serve:
        return  # nodes check their own installation
    if machine.is_here:
        gpus = [gpu for replica in placement.serve for gpu in replica]
        check_engine(chosen, gpus=gpus)
    elif placement.engine not in machine.engines:
        raise MachineError(
            f'serve.engine = "{placement.engine}" is not installed; '
            f"{ENGINES[placement.engine].advice}"
        )


def require_problems(experiment: schema.Experiment, machine: Machine) -> Sequence[Problem] | None:
    """The problems; None if the numbers leave no doubt that there are some, and if they may be
    missing here: for another machine, or before a data set is fetched from the hub. Raises
    ConfigError if a stage has no problems."""
    table = experiment.problems
    if not table.has_others and is_ample(table):
        return None
    paths = [part.path for part in table.parts() if part.source != "generated" and part.path]
    missing = [path for path in paths if not path.exists()]
    if missing and (machine.assumed or all(schema.is_hub_name(str(path)) for path in missing)):
        return None
    problems = load_problems(table, seed=experiment.seed)
    num_heldout = sum(problem.split is Split.HELDOUT for problem in problems)
    trains = any(isinstance(stage, schema.GrpoStage) for stage in experiment.stage)
    for index, stage in enumerate(experiment.stage):
        is_own = isinstance(stage, schema.SftStage) and stage.source != "data"
        if is_own or (isinstance(stage, schema.SftStage) and not experiment.data.has_generated):
            continue  # its rows come from elsewhere
        split = (
            Split(stage.kind) if isinstance(stage, schema.TrainStage) else schema.split_of(stage)
        )
        is_evaluated = split is Split.HELDOUT or (split is Split.GRPO and experiment.eval.every)
        if is_evaluated and trains and not num_heldout and table.num_heldout != schema.SHARED:
            raise ConfigError(
                f"problems: {len(problems)} problems, none of them held out, and stage {index} "
                f'({stage.kind}) evaluates; use = "heldout" or "both" for a source, or {SHARE}'
            )
        if not in_split(problems, split):
            is_drawn = table.heldout_levels is None and any(p.use == "both" for p in table.parts())
            if table.has_others and is_drawn and len(problems) == num_heldout:
                distinct = len({digest_of(problem) for problem in problems})
                found = f"{count(num_heldout, 'problem')} ({distinct} distinct)"
                raise ConfigError(
                    f"problems.num_heldout: found {found}, all held out, which leaves none for "
                    f"stage {index} ({stage.kind}); fewer held out, more distinct problems, or "
                    f"{SHARE}"
                )
            if table.has_others:
                raise ConfigError(
                    f"problems: {len(problems)} problems, and none of them for stage {index} "
                    f"({stage.kind}); levels and the sources' use divide them"
                )
            raise ConfigError(
                f"problems.sft_by_level: {table.sft_by_level} of {table.num_problems} problems, "
                f"{table.num_reserved} of them held out, leaves none for stage {index} "
                f"({stage.kind}); sft trains on that many problems of each chain length, grpo "
                "plays the rest"
            )
    return problems


def require_prompts(experiment: schema.Experiment, machine: Machine) -> PromptSet | None:
    """The prompts, without facts about judges; None if a file is missing here that an assumed
    machine may have. Raises ConfigError if a template or the example of `[prompt]` cannot be used.
    """
    table = experiment.prompt
    named = (table.system, table.first, table.feedback, table.example or None)
    if machine.assumed and not all(path is None or path.exists() for path in named):
        return None
    return make_prompts(table)


def require_template(
    experiment: schema.Experiment,
    prompts: PromptSet | None,
    problems: Sequence[Problem] | None = None,
) -> tuple[str, ...]:
    """Lines about messages that are joined for the chat template of the model, and about room in
    the context, where the prompt of one of the problems must fit; none for a model that is not on
    this machine. Raises ConfigError if the tokenizer or the template cannot be used, or not for as
    many turns; or no prompt fits the context."""
    model = experiment.model
    folder = config_dir(model)
    if folder is None and model.is_gguf:
        template = _gguf_template(model)
        return (template.note,) if template and template.note else ()
    if folder is None or not (folder / "tokenizer.json").is_file():
        return ()
    thinking = experiment.prompt.thinking
    chat = ChatTemplate.load(folder, chat_template=model.chat_template, thinking=thinking)
    question, answer = (Message(role=role, content="") for role in ("user", "assistant"))
    found = [chat.template.note]
    if needs_serving(experiment) and turns_played(experiment) > 1:
        chat.prompt([question, answer, question])
    if needs_serving(experiment) and prompts is not None:
        prompter = TemplatePrompter(
            prompts=prompts, chat=chat, context_tokens=experiment.serve.context_tokens,
            max_completion_tokens=experiment.rollout.max_completion_tokens,
            tools=tuple(experiment.rollout.tools), max_calls=experiment.rollout.tool_calls,
            has_template=not experiment.serve.url,
        )  # fmt: skip
        turns = turns_trained(experiment)
        found.append(prompter.require_room(problems or [NO_SOURCE], max_turns=turns))
    return tuple(filter(None, found))


def _gguf_template(model: schema.ModelTable) -> Template | None:
    """The template of a GGUF file that no model directory was made of; None for ChatML."""
    source = read_gguf(Path(model.path or "").expanduser())
    name, text = f"{source.path}: tokenizer.chat_template", source.chat_template
    if model.chat_template is not None:
        name, text = KEY, text_of(model.chat_template)
    if text is None:
        raise absent_template(source.path)
    return None if text == schema.CHATML else try_template(name, text, source.special_tokens)


IPC = 'serve.weights: found "ipc"'
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"


def require_trainer(experiment: schema.Experiment, placement: Placement, *, is_here: bool) -> None:
    """Refuses what the trainer cannot do with this model on these cards, or on this machine: one
    line for each stage and limit in a ConfigError, or a MachineError for a missing package."""
    model, folder = experiment.model, config_dir(experiment.model)
    shape = None if folder else model_shape(model)
    stages = enumerate(experiment.stage)
    trained = [(index, stage) for index, stage in stages if isinstance(stage, schema.TrainStage)]
    lines = list[str]()
    for index, stage in trained:
        found = refusals(
            stage, model=model, model_dir=folder or Path(model.path or "").expanduser(),
            num_gpus=num_ranks(experiment, placement.train),
            has_experts=shape.is_mixture if shape else None,
        )  # fmt: skip
        lines += [line if line.startswith("model.") else f"stage.{index}.{line}" for line in found]
    if trained and experiment.serve.weights == "ipc":
        if shape.is_mixture if shape else is_mixture(folder or Path()):
            lines.append(f'{IPC} for a mixture of experts, whose files have other tensors; "files"')
        if not placement.train:
            lines.append(f'{IPC}, and the trainer has no GPU; "files", or devices.train = 1')
        for name in ALLOCATOR if is_here else ():
            if EXPANDABLE in os.environ.get(name, "").replace(" ", ""):
                lines.append(
                    f"{IPC}, and {name} has {EXPANDABLE}, memory that no other process can open; "
                    f'"files", or {name} without it'
                )
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    for index, stage in trained if is_here else ():
        for name in ("transformers", "trl", "peft"):
            _require_package(name, f"stage {index}: training")
        if missing := missing_package(stage, model=model):
            raise MachineError(f"stage {index}: {missing}")


def require_packages(experiment: schema.Experiment) -> None:
    """Requirements of judges, sinks and `[cluster]` on this machine. Nodes are asked later: a plan
    connects to nothing. Raises ConfigError, or MachineError for a missing package."""
    judge, address = experiment.judge, experiment.cluster.address
    if not judge.url:
        require_installed(judge.site_packages)
        require_target(judge.target)
    for name in experiment.sinks.to:
        _require_package(name, f'sinks.to = "{name}"')
    if address is not None:
        _require_package("ray", f'cluster.address = "{address}"')


def _require_package(name: str, needed_by: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise MachineError(
            f"{needed_by} needs {name}, which is not installed; "
            f"{sys.executable} -m pip install {name}"
        )
