"""The nouns of the project: frozen dataclasses that every part shares. Imports nothing but
`forge.errors`."""

from forge.records.problem import Message, Pair, Problem, Split
from forge.records.reason import Reason, Status
from forge.records.rollout import (
    Completion,
    End,
    Finish,
    Group,
    GroupStart,
    Prompt,
    Purpose,
    ToolCall,
    Trajectory,
    Turn,
)
from forge.records.run import (
    Attempt,
    AttemptEnd,
    EngineLoad,
    Evaluation,
    Event,
    Metrics,
    ProcessEnd,
    ProcessStart,
    Rewind,
    split_step,
    stage_label,
)
from forge.records.sample import PolicyVersion, Sample, SampleUse
from forge.records.verdict import Judge, Timing, Verdict

__all__ = [
    "Attempt",
    "AttemptEnd",
    "Completion",
    "End",
    "EngineLoad",
    "Evaluation",
    "Event",
    "Finish",
    "Group",
    "GroupStart",
    "Judge",
    "Message",
    "Metrics",
    "Pair",
    "PolicyVersion",
    "Problem",
    "ProcessEnd",
    "ProcessStart",
    "Prompt",
    "Purpose",
    "Reason",
    "Rewind",
    "Sample",
    "SampleUse",
    "Split",
    "Status",
    "Timing",
    "ToolCall",
    "Trajectory",
    "Turn",
    "Verdict",
    "split_step",
    "stage_label",
]
