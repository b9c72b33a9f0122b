"""The settings file of `forge data build`: where rows come from, what is done to them, where to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema import JudgeTable, PathValue, Positive, PromptTable, Share, Table


class InputTable(Table):
    """`[input]`: the rows to read."""

    path: PathValue
    """File of rows (JSON, JSON lines or Parquet), directory of them, or data set on the hub, such
    as "owner/traces"; relative to this file."""
    format: Literal["messages", "trinity", "traces"] = "messages"
    """Columns of the rows. messages: conversations, in the columns that data.path lists.
    trinity: pytorch_code, triton_code, result and thinking. traces: several turns with results
    (sample_key, pytorch_code, turns, final_triton_code, final_result, full_messages)."""
    strict: bool = False
    """End with the first broken row, instead of counting and skipping it."""


class TokenizerTable(Table):
    """`[tokenizer]`: the tokens that lengths are counted in."""

    path: PathValue | None = None
    """Directory or hub name of the model that will be trained: its tokenizer and chat template."""
    chat_template: str | None = None
    """`model.chat_template` of the run that will train: "chatml", a file, or its text."""


class ThinkingTable(Table):
    """`[thinking]`: the thinking at the start of answers."""

    mode: Literal["keep", "drop", "require"] = "keep"
    """keep: thinking where there is any. drop: answers without it. require: rows whose last answer
    has none are left out. Tags of other models become that of prompt.thinking; without one, all
    thinking is dropped."""


class FiltersTable(Table):
    """`[filters]`: rows that are left out."""

    length: bool = True
    """Leave out rows that are too short or too long; needs tokenizer.path."""
    min_tokens: Annotated[int, Field(ge=0)] = 100
    """Minimum length of a row: prompt and answers, with the template's own tokens."""
    max_tokens: Positive = 8192
    """Maximum length of a row."""
    quality: bool = True
    """Leave out answers that are no Python, lack the entry point, or launch no Triton kernel."""
    judged: bool = False
    """Judge every answer, by the settings in [judge], and keep correct ones only."""
    result: Literal["correctness", "fast_0", "fast_1", "fast_2"] = "fast_0"
    """Result that a trace must have. correctness: correct. fast_0: correct, and the benchmark says
    so again. fast_1: a speed-up above 1. fast_2: a speed-up of 2 or more. For trinity, traces."""


class DuplicatesTable(Table):
    """`[duplicates]`: rows that say the same."""

    near: bool = True
    """Leave out rows whose module and answer are both similar to those of an earlier row. Exact
    duplicates are always left out."""
    similarity: Annotated[float, Field(ge=0.5, le=1.0)] = 0.8
    """Share of common pieces of syntax from which two modules, or two answers, are similar. Names
    of variables, numbers and comments do not count. At 0.8 some small modules that differ in one
    activation are similar, at 0.9 none."""


class HeldoutTable(Table):
    """`[heldout]`: problems that must not be trained on."""

    paths: list[str] = Field(default_factory=list[str])
    """Problem files, directories of them (KernelBench), or files of rows (the formats of
    problems.format, or a column code, python_code or pytorch_code), relative to this file. A row
    whose module is similar to one of them, or that asks for its code, is left out."""


class SplitTable(Table):
    """`[split]`: rows set apart for measuring."""

    heldout_share: Share = 0.0
    """Share of the rows that go to heldout.*; similar modules are never divided."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    """Seed of the choice."""


class OutputTable(Table):
    """`[output]`: the files to write."""

    dir: PathValue
    """Directory for train.*, heldout.*, dropped.jsonl and manifest.json, relative to this file."""
    formats: Annotated[list[Literal["parquet", "jsonl"]], Field(min_length=1)] = Field(
        default_factory=lambda: ["parquet", "jsonl"]
    )
    """Kinds of files to write."""


class DataBuild(Table):
    """A whole settings file of `forge data build`."""

    input: InputTable
    """The rows to read."""
    tokenizer: TokenizerTable = TokenizerTable()
    """The tokens that lengths are counted in."""
    prompt: PromptTable = PromptTable()
    """The texts that a model is asked with: those of the experiment that trains on the rows."""
    thinking: ThinkingTable = ThinkingTable()
    """The thinking at the start of answers."""
    filters: FiltersTable = FiltersTable()
    """Rows that are left out."""
    duplicates: DuplicatesTable = DuplicatesTable()
    """Rows that say the same."""
    heldout: HeldoutTable = HeldoutTable()
    """Problems that must not be trained on."""
    judge: JudgeTable = JudgeTable()
    """Compiling, checking and timing candidates; for filters.judged."""
    split: SplitTable = SplitTable()
    """Rows set apart for measuring."""
    output: OutputTable
    """The files to write."""
