"""`forge data prompt PROBLEM`: exactly what a model is sent about a problem, as text or token ids.

The prompts are those of an experiment on this machine, or those that a run recorded. With attempts,
each is judged here, and the conversation goes on as in a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.prompts.problem import find_asked, judge_attempts
from forge.config.load import load_experiment
from forge.config.schema import JudgeTable, PromptTable
from forge.data.chat import ChatTemplate
from forge.data.prompts.loading import make_prompts
from forge.errors import ConfigError, ForgeError, MachineError
from forge.records import Prompt
from forge.rollout.prompter import TemplatePrompter
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.placement import place
from forge.runner.prepare.prompt_facts import prompts_of, prompts_of_run
from forge.runner.weights.resume import find_weights

if TYPE_CHECKING:
    from forge.config.schema import Experiment
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.devices import Gpu
    from forge.store.layout import RunPaths


BASELINE_UNKNOWN = (
    "the reference's time is measured with the first correct kernel, and stated in the message "
    "about it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """A problem, and whose prompts are wanted: of an experiment, of a run, or the default ones."""

    problem: str
    """Id of a problem, a file, or `-` for stdin."""
    experiment: Path | None = None
    run: RunPaths | None = None
    overrides: Sequence[str] = ()
    """Arguments of `--set`."""
    assumed: str | None = None
    """Machine in place of this one, as for `forge plan --assume`."""
    attempts: Sequence[str] = ()
    """Files with a model's answers, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    """A prompt as it is sent."""

    prompt_hash: str
    prompt: Prompt
    is_rendered: bool
    """True if the tokenizer is known, so that text and ids are there."""
    note: str = ""
    """Reason why the tokenizer is unknown; empty if it is known."""
    unknown: str = ""
    """Remark on what a later message states and this one cannot; empty if there is nothing."""

    def to_json(self) -> dict[str, Any]:
        """The output of `forge data prompt --json`; without a tokenizer, text and ids are null."""
        known = self.is_rendered
        return {
            "prompt_hash": self.prompt_hash,
            "messages": [asdict(message) for message in self.prompt.messages],
            "text": self.prompt.text if known else None,
            "ids": list(self.prompt.ids) if known else None,
        }

    def text(self) -> str:
        """The rendered conversation; without a tokenizer, its messages under their roles."""
        if self.is_rendered:
            return self.prompt.text
        return "\n".join(f"[{each.role}]\n{each.content}" for each in self.prompt.messages)

    def ids(self) -> str:
        """The token ids in a line. Raises ConfigError without a tokenizer."""
        if not self.is_rendered:
            raise ConfigError(f"--ids: {self.note}")
        return " ".join(map(str, self.prompt.ids))


def show_prompt(request: PromptRequest) -> ShownPrompt:
    """The prompt of the turn that follows the attempts.

    Raises:
        ConfigError: no such problem, a template that cannot be used, or a conversation that does
            not fit the context.
        MachineError: an attempt cannot be judged here.
    """
    if request.experiment is not None and request.run is not None:
        raise ConfigError("--experiment and --run: found both; one of them, or neither")
    if request.experiment is None and (request.overrides or request.assumed is not None):
        raise ConfigError("--set and --assume change an experiment; name it with --experiment")
    experiment = _experiment(request)
    if experiment is None:
        prompts, gpus = make_prompts(PromptTable()), ()
    else:
        prompts, gpus = _prompts(request, experiment)
    if request.attempts and request.assumed is not None:
        raise ConfigError("--assume: attempts are judged here; leave out --attempt or --assume")
    problem = find_asked(request.problem, run=request.run, experiment=experiment)
    table = JudgeTable() if experiment is None else experiment.judge
    attempts = judge_attempts(
        request.attempts, problem, thinking=prompts.thinking, table=table, gpus=gpus
    )
    chat, note = _chat_template(request, experiment)
    unknown = BASELINE_UNKNOWN if gpus and prompts.has_baseline and not attempts else ""
    if chat is None or experiment is None:
        messages = prompts.conversation(problem, attempts)
        plain = Prompt(ids=(), messages=messages)
        return ShownPrompt(
            prompt_hash=prompts.hash, prompt=plain, is_rendered=False, note=note, unknown=unknown
        )
    prompter = TemplatePrompter(
        prompts=prompts,
        chat=chat,
        context_tokens=experiment.serve.context_tokens,
        max_completion_tokens=experiment.rollout.max_completion_tokens,
    )
    prompt = prompter.prompt(problem, attempts)
    if prompt is None:
        raise ConfigError(
            f"{problem.problem_id}: does not fit serve.context_tokens = "
            f"{experiment.serve.context_tokens} beside rollout.max_completion_tokens = "
            f"{experiment.rollout.max_completion_tokens}"
        )
    return ShownPrompt(prompt_hash=prompts.hash, prompt=prompt, is_rendered=True, unknown=unknown)


def _experiment(request: PromptRequest) -> Experiment | None:
    path = request.run.experiment if request.run else request.experiment
    if path is None:
        return None
    # Of a run, what a command shows needs none of its other files.
    is_here = request.run is None and request.assumed is None
    return load_experiment(path, overrides=request.overrides, is_here=is_here)


def _prompts(request: PromptRequest, experiment: Experiment) -> tuple[PromptSet, Sequence[Gpu]]:
    """The prompts, and the cards of the judges: those of the run, or those of this machine."""
    machine = this_machine(experiment.store.dir)
    if request.assumed is not None:
        machine = assume(request.assumed, here=machine)
    try:
        gpus = place(experiment, machine).judge
    except MachineError as error:
        if request.run is None:
            raise MachineError(f"{error}; --assume names a machine that has them") from None
        gpus = ()
    if request.run is not None:
        return prompts_of_run(request.run, experiment), gpus
    return prompts_of(experiment, gpus), gpus


def _chat_template(
    request: PromptRequest, experiment: Experiment | None
) -> tuple[ChatTemplate | None, str]:
    """The tokenizer of a run's model, or of the experiment's where it is on this machine; else None
    and the reason."""
    if experiment is None:
        return None, "no tokenizer is known without --run or --experiment"
    if request.run is not None:
        try:
            return ChatTemplate.load(find_weights(request.run, "").full), ""
        except ForgeError as error:  # its records are there, its weights may be gone
            return None, str(error)
    if experiment.model.path is None:
        return None, "a random model has a tokenizer once a run has made it; --run names one"
    folder = _local(experiment.model.path, revision=experiment.model.revision)
    if folder is None:
        return None, f"{experiment.model.path} is not on this machine, so its tokenizer is unknown"
    return ChatTemplate.load(folder), ""


def _local(name: str, *, revision: str | None) -> Path | None:
    """The directory of a model, or its files in the hub's cache; nothing is downloaded."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None
