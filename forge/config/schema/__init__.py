"""The tables of an experiment file: frozen pydantic models with types, ranges and defaults.

`forge keys` and error messages print the fields' docstrings; a key without one fails a test.
Imported by every room that takes settings. Never imports loading or checking.
"""

from forge.config.schema.base import KeyPath, TomlTable, TomlValue, dotted
from forge.config.schema.experiment import Experiment, LimitsTable, StoreTable
from forge.config.schema.judge import JUDGE_URL, JudgeTable
from forge.config.schema.problems import DataTable, ProblemSource, ProblemsTable, SourceTable
from forge.config.schema.rollout import EvalTable, PromptTable, RewardTable, RolloutTable
from forge.config.schema.serving import (
    CLUSTER_ADDRESS,
    SERVE_URL,
    ClusterTable,
    ServeTable,
    with_half_a_card,
)
from forge.config.schema.training import (
    Budget,
    EvalStage,
    GrpoStage,
    LoraTable,
    ModelTable,
    PlayStage,
    QuantizeTable,
    SearchStage,
    SftStage,
    Stage,
    TinyModel,
    TrainStage,
    split_of,
)

__all__ = [
    "CLUSTER_ADDRESS",
    "JUDGE_URL",
    "SERVE_URL",
    "Budget",
    "ClusterTable",
    "DataTable",
    "EvalStage",
    "EvalTable",
    "Experiment",
    "GrpoStage",
    "JudgeTable",
    "KeyPath",
    "LimitsTable",
    "LoraTable",
    "ModelTable",
    "PlayStage",
    "ProblemSource",
    "ProblemsTable",
    "PromptTable",
    "QuantizeTable",
    "RewardTable",
    "RolloutTable",
    "SearchStage",
    "ServeTable",
    "SftStage",
    "SourceTable",
    "Stage",
    "StoreTable",
    "TinyModel",
    "TomlTable",
    "TomlValue",
    "TrainStage",
    "dotted",
    "split_of",
    "with_half_a_card",
]
