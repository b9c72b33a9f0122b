"""The tables of an experiment file: frozen pydantic models with types, ranges and defaults.

`forge keys` and error messages print the fields' docstrings; a key without one fails a test.
Imported by every room that takes settings. Never imports loading or checking.
"""

from forge.config.schema.base import KeyPath, TomlTable, TomlValue, dotted
from forge.config.schema.cluster import CLUSTER_ADDRESS, ClusterTable, with_half_a_card
from forge.config.schema.experiment import Experiment
from forge.config.schema.judge import JUDGE_URL, JudgeTable
from forge.config.schema.model import LoraTable, ModelTable, QuantizeTable, TinyModel
from forge.config.schema.outlets import LimitsTable, StoreTable
from forge.config.schema.problems import DataTable, ProblemSource, ProblemsTable, SourceTable
from forge.config.schema.prompt import PromptTable
from forge.config.schema.rollout import EvalTable, RewardTable, RolloutTable
from forge.config.schema.serving import SERVE_URL, ServeTable
from forge.config.schema.stages import EvalStage, GrpoStage, SftStage, Stage, TrainStage

__all__ = [
    "CLUSTER_ADDRESS",
    "JUDGE_URL",
    "SERVE_URL",
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
    "ProblemSource",
    "ProblemsTable",
    "PromptTable",
    "QuantizeTable",
    "RewardTable",
    "RolloutTable",
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
    "with_half_a_card",
]
