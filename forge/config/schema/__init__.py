"""The tables of an experiment file: frozen pydantic models with types, ranges and defaults.

`forge keys` and error messages print the fields' docstrings; a key without one fails a test.
Imported by every room that takes settings. Never imports loading or checking.
"""

# ruff: noqa: F401
# pyright: reportUnusedImport=false

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
