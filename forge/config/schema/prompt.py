"""`[prompt]`: the texts that a model is asked with, and how its thinking is marked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Table

PresetName = Literal["tiny", "standard", "kernelbench", "tritonforge"]

TagName = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$",
        json_schema_extra={"allowed": "the name of a tag, such as think; empty for none"},
    ),
]


class PromptTable(Table):
    """`[prompt]`: the texts that a model is asked with. Training, evaluation and SFT share them."""

    preset: PresetName = "tiny"
    """Templates of the messages. tiny: one sentence, for tiny models. standard: rules of the judge,
    format of an answer, an example, facts of the device. kernelbench: the structure of
    KernelBench's one-shot prompt. tritonforge: that of TritonForge's checkpoints."""
    system: PathValue | None = None
    """Jinja template of the system message, in place of the preset's; relative to this file or to
    the working directory, as the next two. An empty message is left out."""
    first: PathValue | None = None
    """Jinja template of the first message about a problem, in place of the preset's."""
    feedback: PathValue | None = None
    """Jinja template of the message about a verdict, in place of the preset's."""
    example: PathValue | Literal[False] | None = None
    """Worked example: false for none, or a text file with two fenced blocks, a problem and its
    answer. Absent: the preset's, the sum of two tensors."""
    hardware: bool = True
    """State the GPU of the judges with its memory, bandwidth and peaks, where the templates do."""
    baseline: bool = True
    """State the reference's time and the share of the roofline in the message about a verdict, once
    they are measured."""
    attempts: Literal["all", "last"] = "all"
    """Earlier attempts in the conversation: all that fit the context, or the last one alone."""
    thinking: TagName = "think"
    """Tag around a model's thinking, which is no part of its answer: think for <think>…</think>;
    empty for models that do not mark it."""
