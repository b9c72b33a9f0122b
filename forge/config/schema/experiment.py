"""The whole of an experiment file: its tables and stages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forge.config.schema.base import NAME_RULE, Table
from forge.config.schema.cluster import ClusterTable
from forge.config.schema.judge import JudgeTable
from forge.config.schema.model import ModelTable
from forge.config.schema.outlets import LimitsTable, NotifyTable, SinksTable, StoreTable
from forge.config.schema.problems import DataTable, ProblemsTable
from forge.config.schema.prompt import PromptTable
from forge.config.schema.rollout import EvalTable, RewardTable, RolloutTable
from forge.config.schema.serving import DevicesTable, ServeTable
from forge.config.schema.stages import Stage


class Experiment(Table):
    """A whole experiment file."""

    name: Annotated[str, NAME_RULE]
    """Name of the experiment; its run directories are named <name>-<n>."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    """Seed of all random choices except the judge's inputs."""
    model: ModelTable
    """The model to train and serve."""
    problems: ProblemsTable = ProblemsTable()
    """The problems to solve."""
    data: DataTable = DataTable()
    """Rows for supervised fine-tuning."""
    prompt: PromptTable = PromptTable()
    """Texts that the model is asked with."""
    devices: DevicesTable = DevicesTable()
    """GPUs of each role."""
    serve: ServeTable = ServeTable()
    """Inference engines."""
    judge: JudgeTable = JudgeTable()
    """Compiling, checking and timing candidates."""
    cluster: ClusterTable = ClusterTable()
    """Other machines that judge and generate for the run."""
    reward: RewardTable = RewardTable()
    """Terms of the reward of one verdict."""
    rollout: RolloutTable = RolloutTable()
    """Sampling groups of rollouts for GRPO."""
    eval: EvalTable = EvalTable()
    """Measuring a policy on held-out problems."""
    store: StoreTable = StoreTable()
    """Storage of runs."""
    limits: LimitsTable = LimitsTable()
    """Limits of an attempt."""
    notify: NotifyTable = NotifyTable()
    """Messages to people."""
    sinks: SinksTable = SinksTable()
    """Other destinations of the metrics."""
    stage: Annotated[list[Stage], Field(min_length=1)]
    """Stages in order."""
