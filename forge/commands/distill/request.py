"""The request of `forge data distill`, and the problems, judge and reward that it names.

X.toml      [problems] [judge] [reward] [prompt] of an experiment, without its held-out problems
folder/     every problem file below it, with the prompts of `--preset`
file.py     one problem, with the same prompts
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from forge.adapters.settings import JudgeSettings
from forge.commands.judge.judge import require_path
from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable, PromptTable, RewardTable
from forge.config.schema.prompt import PresetName
from forge.data.directory import parse_file, to_problem
from forge.data.problems import load_problems
from forge.errors import ConfigError
from forge.evalpool.site_packages import require_installed
from forge.records import Problem, Split
from forge.runner.prepare.prompt_facts import prompts_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import JudgeTable
    from forge.data.prompts.prompt_set import PromptSet
    from forge.process.devices import Gpu
    from forge.serve.remote.teacher import TeacherSettings

MILLION = 1_000_000
PRESET = "standard"
"""Default without an experiment: a teacher knows neither our rules nor our format of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    prompt: float
    completion: float

    def of(self, *, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars for so many tokens."""
        paid = prompt_tokens * self.prompt + completion_tokens * self.completion
        return paid / MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillRequest:
    """Problems for a teacher, and the limits of its attempts."""

    problems: Path
    out: Path
    teacher: TeacherSettings
    overrides: Sequence[str] = ()
    """`--set` of an experiment."""
    preset: str | None = None
    """Preset of the prompts, for problems without an experiment."""
    includes_heldout: bool = False
    attempts: int = 1
    """Maximum attempts at a problem; the first accepted one ends it."""
    turns: int = 3
    max_tokens: int = 8192
    """Maximum length of one answer, with its thinking."""
    temperature: float | None = None
    seed: int | None = None
    min_speedup: float = 1.0
    """Minimum speed-up, by the lower end of its interval, of an accepted kernel that was timed."""
    concurrency: int = 8
    """Problems in play at the same time."""
    price: Price | None = None
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    def pinned(self, *, model: str, prompts: PromptSet) -> dict[str, Any]:
        """Settings that all traces of a directory share. Others may change when it is continued:
        the URL, the problems, the number of attempts."""
        return {
            "model": model,
            "prompts": prompts.hash,
            "turns": self.turns,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "min_speedup": self.min_speedup,
            "body": dict(self.teacher.body),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillTask:
    """Everything that the request names, read and checked."""

    source: str
    """Origin of the problems, for the rows: name of an experiment, or of a folder or file."""
    problems: Sequence[Problem]
    judge: JudgeTable
    gpus: Sequence[Gpu]
    reward: RewardTable
    prompts: PromptSet
    num_heldout: int = 0
    """Problems that are left out since they are held out."""


def read_task(request: DistillRequest) -> DistillTask:
    """The problems and the judge of a request.

    Raises:
        ConfigError: a file, an experiment or an option that cannot be used, or no problem.
        MachineError: a missing GPU.
    """
    _check(request)
    path, gpus = request.problems, request.judge.gpus()
    reward, prompt = RewardTable(), _prompt(request)
    num_heldout = 0
    if path.suffix == ".toml":
        experiment = load_experiment(path, overrides=request.overrides, is_here=False)
        problems = load_problems(experiment.problems, seed=experiment.seed)
        if not request.includes_heldout:
            kept = [each for each in problems if each.split is not Split.HELDOUT]
            num_heldout, problems = len(problems) - len(kept), kept
        source, reward, prompt = experiment.name, experiment.reward, experiment.prompt
        judge = _overridden(experiment.judge, request.judge)
        require_installed(judge.site_packages, key="judge.site_packages")
    else:
        if request.overrides:
            raise ConfigError(f"--set: {path} is no experiment file; it changes keys of X.toml")
        problems, source, judge = _load(path), path.resolve().stem, request.judge.table()
    if not problems:
        raise ConfigError(f"{path}: all {num_heldout} problems are held out; --include-heldout")
    return DistillTask(
        source=source,
        problems=problems,
        judge=judge,
        gpus=() if judge.url else gpus,
        prompts=prompts_for(prompt, judge, () if judge.url else gpus),
        reward=reward.model_copy(update={"stop_at_speedup": request.min_speedup}),
        num_heldout=num_heldout,
    )


def _prompt(request: DistillRequest) -> PromptTable:
    """The prompts of a request without an experiment. Raises ConfigError."""
    name, allowed = request.preset or PRESET, get_args(PresetName)
    if name not in allowed:
        raise ConfigError(f"--preset {name}: one of {', '.join(allowed)}")
    return PromptTable.model_validate({"preset": name})


def _check(request: DistillRequest) -> None:
    require_path(request.problems)
    if request.preset is not None and request.problems.suffix == ".toml":
        raise ConfigError(f"--preset: {request.problems} has its own: --set prompt.preset=NAME")
    if request.min_speedup <= 0:
        raise ConfigError(f"--min-speedup {request.min_speedup:g}: must be above 0")
    if request.temperature is not None and request.temperature < 0:
        raise ConfigError(f"--temperature {request.temperature:g}: must be 0 or more")
    if request.teacher.timeout_s <= 0:
        raise ConfigError(f"--timeout {request.teacher.timeout_s:g}: must be above 0")


def _load(path: Path) -> list[Problem]:
    if path.is_dir():
        return load_problems(ProblemsTable(source="dir", path=path), seed=0)
    file = parse_file(path)
    return [to_problem(file, root=path.parent, overrides={}, split=Split.GRPO)]


def _overridden(table: JudgeTable, options: JudgeSettings) -> JudgeTable:
    """The experiment's judge, with the options that the command line gives."""
    if options.url is not None:
        return options.table()
    if options.workers is not None:
        return table.model_copy(update={"workers": options.workers})
    return table
