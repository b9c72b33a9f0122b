"""`forge data prompt PROBLEM`: exactly what a model is sent about a problem, as text or token ids.

The prompts are those of an experiment on this machine, or those that a run recorded. With attempts,
each is judged here, and the conversation goes on as in a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from forge.adapters.subjects import STDIN, read_source
from forge.config.load import load_experiment
from forge.config.schema import Experiment, JudgeTable, PromptTable
from forge.data.answers import extract
from forge.data.chat import ChatTemplate
from forge.data.problem_files import find_problem
from forge.data.problems import from_source, load_problems
from forge.data.prompts.prompt_set import Exchange, PromptSet, make_prompts
from forge.errors import ConfigError, ForgeError, MachineError
from forge.evalpool.pool import open_private_pool
from forge.process.devices import Gpu
from forge.records import Problem, Prompt, Status, Verdict
from forge.rollout.play import verdict_without_code
from forge.rollout.prompter import TemplatePrompter
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.placement import judge_cards
from forge.runner.prepare.hub import find_made, with_run
from forge.runner.prepare.own_answers import read_problem
from forge.runner.prepare.prompt_facts import prompts_for, prompts_of_run
from forge.runner.weights.model_dir import config_dir
from forge.runner.weights.resume import find_weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run

CARD_UNKNOWN = (
    "the judges' card, which this machine does not have; --assume names a machine that does"
)
BASELINE_UNKNOWN = (
    "the reference's time is measured with the first correct kernel, and stated in the message "
    "about it"
)

MAX_NAME = 256
MAX_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """Options of `forge data prompt`, whose help describes them."""

    problem: str
    experiment: Path | None = None
    run: RunPaths | None = None
    overrides: Sequence[str] = ()
    assumed: str | None = None
    attempts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    prompt_hash: str
    prompt: Prompt
    note: str = ""
    """Reason why the tokenizer is unknown, so that there is neither text nor ids; else empty."""
    unknown: str = ""
    """Remark on what a later message states and this one cannot; empty if there is nothing."""

    def to_json(self) -> dict[str, Any]:
        """The output of `forge data prompt --json`; without a tokenizer, text and ids are null."""
        known = not self.note
        return {
            "prompt_hash": self.prompt_hash,
            "messages": [asdict(message) for message in self.prompt.messages],
            "text": self.prompt.text if known else None,
            "ids": list(self.prompt.ids) if known else None,
        }

    def text(self) -> str:
        """The rendered conversation; without a tokenizer, its messages under their roles."""
        if not self.note:
            return self.prompt.text
        return "\n".join(f"[{each.role}]\n{each.content}" for each in self.prompt.messages)

    def ids(self) -> str:
        """The token ids in a line. Raises ConfigError without a tokenizer."""
        if self.note:
            raise ConfigError(f"--ids: {self.note}")
        return " ".join(map(str, self.prompt.ids))


def show_prompt(request: PromptRequest) -> ShownPrompt:
    """The prompt of the turn that follows the attempts. Raises ConfigError: no such problem, a
    template that cannot be used, or a conversation that does not fit the context; MachineError: an
    attempt cannot be judged here."""
    if request.experiment is not None and request.run is not None:
        raise ConfigError("--experiment and --run: found both; one of them, or neither")
    if request.experiment is None and (request.overrides or request.assumed is not None):
        raise ConfigError("--set and --assume change an experiment; name it with --experiment")
    experiment = _experiment(request)
    if experiment is None:
        prompts, gpus, unknown = make_prompts(PromptTable()), (), ""
    else:
        prompts, gpus, unknown = _prompts(request, experiment)
    if request.attempts and request.assumed is not None:
        raise ConfigError("--assume: attempts are judged here; leave out --attempt or --assume")
    problem = find_asked(request.problem, run=request.run, experiment=experiment)
    table = JudgeTable() if experiment is None else experiment.judge
    attempts = judge_attempts(
        request.attempts, problem, thinking=prompts.thinking, table=table, gpus=gpus
    )
    chat, note = _chat_template(request, experiment, thinking=prompts.thinking)
    if gpus and prompts.has_baseline and not attempts:
        unknown = BASELINE_UNKNOWN
    if chat is None or experiment is None:
        plain = Prompt(ids=(), messages=prompts.conversation(problem, attempts))
        return ShownPrompt(prompt_hash=prompts.hash, prompt=plain, note=note, unknown=unknown)
    prompter = TemplatePrompter(
        prompts=prompts,
        chat=chat,
        context_tokens=experiment.serve.context_tokens,
        max_completion_tokens=experiment.rollout.max_completion_tokens,
        tools=tuple(experiment.rollout.tools),
        max_calls=experiment.rollout.tool_calls,
        has_template=not experiment.serve.url,
    )
    prompt = prompter.prompt(problem, attempts)
    if prompt is None:
        raise ConfigError(
            f"{problem.problem_id}: does not fit serve.context_tokens = "
            f"{experiment.serve.context_tokens} beside rollout.max_completion_tokens = "
            f"{experiment.rollout.max_completion_tokens}"
        )
    return ShownPrompt(prompt_hash=prompts.hash, prompt=prompt, unknown=unknown)


def _experiment(request: PromptRequest) -> Experiment | None:
    path = request.run.experiment if request.run else request.experiment
    if path is None:
        return None
    if request.run is not None:
        open_run(request.run).close()  # first: of another version, its keys may be unknown too
    # Of a run, what a command shows needs none of its other files.
    is_here = request.run is None and request.assumed is None
    experiment = load_experiment(path, overrides=request.overrides, is_here=is_here)
    return experiment if request.run is not None else with_run(experiment, merges=False)


def _prompts(
    request: PromptRequest, experiment: Experiment
) -> tuple[PromptSet, Sequence[Gpu], str]:
    """The prompts, the cards of the judges that the run or this machine has, and a remark if it
    lacks them. Nothing else of the experiment has to fit this machine."""
    machine = this_machine(experiment.store.dir)
    if request.assumed is not None:
        machine = assume(request.assumed, here=machine)
    gpus, unknown = (), ""
    try:
        gpus = judge_cards(experiment, machine)
    except MachineError:
        if request.attempts and request.run is None:
            raise
        unknown = CARD_UNKNOWN
    if request.run is not None:
        return prompts_of_run(request.run, experiment), gpus, ""
    return prompts_for(experiment.prompt, experiment.judge, gpus), gpus, unknown


def _chat_template(
    request: PromptRequest, experiment: Experiment | None, *, thinking: str
) -> tuple[ChatTemplate | None, str]:
    """The tokenizer of a run's model, or of the experiment's where it is on this machine; else None
    and the reason."""
    if experiment is None:
        return None, "no tokenizer is known without --run or --experiment"
    if request.run is not None:
        try:
            return ChatTemplate.load(find_weights(request.run, "").full, thinking=thinking), ""
        except ForgeError as error:  # its records are there, its weights may be gone
            return None, str(error)
    if experiment.model.path is None:
        return None, "a random model has a tokenizer once a run has made it; --run names one"
    model = experiment.model
    folder = find_made(model) if model.is_gguf else config_dir(model)
    if folder is None or not (folder / "tokenizer.json").is_file():
        why = "no run has made a model of it" if model.is_gguf else "not on this machine"
        return None, f"{model.path}: {why}, so its tokenizer is unknown"
    return ChatTemplate.load(folder, chat_template=model.chat_template, thinking=thinking), ""


def find_asked(name: str, *, run: RunPaths | None, experiment: Experiment | None) -> Problem:
    """The problem of this id, name or number, if it means one alone, or in this file. A file of the
    experiment's own directory has the experiment's sizes."""
    name = _own_name(name, experiment)
    is_text = name == STDIN or _is_file(name)
    by_id: dict[str, Problem] = {}
    known: list[str] = []
    if run is not None:
        with open_run(run) as reader:
            known = [row["problem_id"] for row in reader.rows("SELECT problem_id FROM problems")]
    elif experiment is not None and not is_text:
        problems = load_problems(experiment.problems, seed=experiment.seed)
        by_id = {each.problem_id: each for each in problems}
        known = list(by_id)
    if is_text and name not in known:
        return from_source(read_source(name), name=Path(name).stem if name != STDIN else "stdin")
    found = name if name in known else find_problem(name.removesuffix(".py"), known)
    if found is None:
        listed = ", ".join(known[:MAX_NAMES]) + (", ..." if len(known) > MAX_NAMES else "")
        where = f"; problems are {listed}" if known else "; a problem file, or - for stdin"
        raise ConfigError(f"{name[:MAX_NAME]}: no such problem{where}")
    if run is None:
        return by_id[found]
    with open_run(run) as reader:
        return read_problem(reader, found)


def _own_name(name: str, experiment: Experiment | None) -> str:
    """The id of a file in the experiment's directory of problems; other names as they are."""
    root = None if experiment is None else experiment.problems.path
    if root is None or not _is_file(name):
        return name
    path, root = Path(name).resolve(), root.resolve()
    return path.relative_to(root).with_suffix("").as_posix() if root in path.parents else name


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a source pasted in place of a path
        return False


def judge_attempts(
    paths: Sequence[str], problem: Problem, *, thinking: str, table: JudgeTable, gpus: Sequence[Gpu]
) -> list[Exchange]:
    """Files with answers, each with its verdict. Raises ConfigError: a file that cannot be read, or
    a problem that cannot be judged; MachineError: the judge failed."""
    texts = [read_source(path) for path in paths]
    found = [extract(text, entry_point=problem.entry_point, thinking=thinking) for text in texts]
    codes = [each.code for each in found if each.is_ok]
    judged = _judge_all(table, problem, codes, gpus) if codes else []
    for verdict in judged:
        if not verdict.status.is_scored:  # no rollout goes on after it
            kind = MachineError if verdict.status is Status.INFRA_ERROR else ConfigError
            detail = " ".join(verdict.detail.split())[:MAX_NAME]
            raise kind(f"{problem.problem_id}: {verdict.status}: {verdict.reason}: {detail}")
    verdicts = iter(judged)
    return [
        Exchange(
            completion_text=text,
            verdict=next(verdicts) if each.is_ok else verdict_without_code(problem, each.reason),
        )
        for text, each in zip(texts, found, strict=True)
    ]


def _judge_all(
    table: JudgeTable, problem: Problem, codes: Sequence[str], gpus: Sequence[Gpu]
) -> list[Verdict]:
    async def judge() -> list[Verdict]:
        alone = table.model_copy(update={"workers": 1})
        async with open_private_pool(alone, gpus=gpus[:1]) as pool:
            return [await pool.judge(problem, code) for code in codes]

    return anyio.run(judge)
