"""`[problems]` and `[data]`: problems to solve, and rows for supervised fine-tuning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import NAME_RULE, PathValue, Positive, Share, Table
from forge.records.problem import MAX_SHAPES

Constant = int | Annotated[float, Field(allow_inf_nan=False)] | bool | str
"""Value of a module constant of a problem file. Infinity and NaN have no literal in Python."""

ConstantsTable = dict[str, Constant | dict[str, Constant]]
"""Values of module constants, and tables of such values by a problem's name or number."""

Dtype = Literal["fp32", "fp16", "bf16"]
"""Element types of problems."""


RowFormat = Literal[
    "kernelbench",
    "kernelbook",
    "tritonforge",
    "cuda-agent",
    "drkernel",
    "drkernel-coldstart",
    "harvest",
]
"""Columns of a file of problems."""


HUB_DATASET = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
"""`owner/name`; anything else can only be a path."""

MAX_CHAIN = 4
"""Longest chain of operations in a generated problem; the level of a problem is its length."""
MOST_HELDOUT = 64
"""Default number of held-out problems; of a directory or a file the most."""
SHARED = "shared"
"""Value of `num_heldout` by which evaluations are of the training problems."""


def is_hub_name(text: str) -> bool:
    """True for a text that may name a data set on the hub: `owner/name`, and no file of rows."""
    return bool(HUB_DATASET.fullmatch(text)) and not text.endswith((".json", ".jsonl", ".parquet"))


class SourceTable(Table):
    """Keys of one source of problems: those of `[problems]` and of each `[[problems.sources]]`."""

    source: Literal["generated", "dir", "file"] = "generated"
    """Origin of the problems: the built-in generator, a directory in KernelBench's layout, or the
    rows of a file."""
    path: PathValue | None = None
    """For source = "dir": directory of the problems, searched recursively for *.py. For "file": a
    file of rows (JSON, JSON lines or Parquet), a directory of them, or a data set on the hub, such
    as "GPUMODE/KernelBook". Relative to this file or to the working directory."""
    format: RowFormat = "kernelbench"
    """Columns of the rows; for source = "file". kernelbench: code, level, name, problem_id.
    kernelbook (KernelLLM's data too): python_code, entry_point. tritonforge: label, extra_info.
    cuda-agent: code. drkernel: reward_model. drkernel-coldstart: original_python_code."""
    overrides: ConstantsTable = Field(default_factory=dict)
    """Values for module constants of the problem files, e.g. { batch_size = 16, dim = 256 }; a
    table by a problem's name or number, e.g. { "3_matmul" = { N = 512 } }, for that file alone. For
    source = "dir" or "file"."""
    shapes: list[ConstantsTable] | None = Field(
        default=None,
        json_schema_extra={"allowed": f"a list of 1 to {MAX_SHAPES} tables of constants"},
    )
    """Shapes of the problem files, e.g. [{ N = 1024 }, { N = 4096, M = 100 }]: a table as in
    overrides each, applied after overrides. A candidate has to be correct at all of them, and its
    speed-up is the geometric mean. A shape counts for the files that have one of its constants. For
    source = "dir" or "file"."""
    include: list[str] = Field(default_factory=list)
    """Glob patterns of files, relative to path; for source = "file" of the problems' ids, such as
    "level1/*". Empty means all; for source = "dir" or "file"."""


class ProblemSource(SourceTable):
    """A `[[problems.sources]]`: one of several sources of problems."""

    name: Annotated[str, NAME_RULE] | None = None
    """Prefix of its problems' ids; needed where two sources have the same ids. Ids of generated
    problems have none."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Relative frequency of this source in GRPO; absent means its number of problems."""
    use: Literal["both", "train", "heldout"] = "both"
    """Use of its problems. train, heldout: training or evaluation only. both: divided by levels or
    at random."""

    @property
    def label(self) -> str:
        """Its name, `generated`, or the last folder or file of its path."""
        return self.name or ("generated" if self.path is None else self.path.stem)


class ProblemsTable(SourceTable):
    """`[problems]`: the problems to solve."""

    sources: list[ProblemSource] | None = Field(
        default=None,
        min_length=1,
        json_schema_extra={"allowed": "one [[problems.sources]] or more"},
    )
    """Several sources of problems, instead of source, path and the other keys of one."""
    train_levels: list[Positive] | None = None
    """Levels to train on, e.g. [1, 2], for problems of directories and files; absent means all that
    are not held out."""
    heldout_levels: list[Positive] | None = None
    """Levels reserved for evaluation, e.g. [3], for problems of directories and files; absent means
    a random choice of num_heldout."""
    duplicates: Literal["refuse", "drop", "allow"] = "refuse"
    """Handling of SFT rows and training problems with the same code as a held-out problem, apart
    from names, comments and sizes. refuse: the run ends. drop: they are left out. allow: they are
    trained on, and evaluations are labelled."""
    sizes: Literal["small", "gpu"] = "small"
    """Tensor sizes of generated problems. small: for judges without a GPU. gpu: large enough for
    100 µs or more on a GPU."""
    dtypes: Annotated[list[Dtype], Field(min_length=1)] = Field(
        default_factory=lambda: ["fp32"],
        json_schema_extra={"allowed": 'a list of "fp32", "fp16", "bf16"'},
    )
    """Element types of generated problems: each problem has one of them, at random. None is in half
    precision if the judge's tolerance could not tell its chain of operations from a shorter one: of
    ["fp32", "bf16"], about a fifth of the problems is in bf16."""
    num_problems: Annotated[int, Field(ge=64)] = 3200
    """Number of generated problems, all different, divided among SFT, GRPO and evaluation. Those
    with the model of a held-out one, for inputs of other shapes, are left out."""
    num_heldout: Positive | Literal["shared"] | None = None
    """Number of problems reserved for evaluation. Absent means 64 of generated problems, and of
    directories and files a fifth, from 1 to 64. "shared", for directories and files, reserves none:
    evaluations are of the problems that are trained on, and labelled."""
    allow_flagged: bool = False
    """Train on problems that "forge problems check" flags, instead of leaving them out; for source
    = "dir" or "file"."""
    sft_by_level: Annotated[
        list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_CHAIN)
    ] = Field(
        default_factory=lambda: [200, 200, 100, 50],
        json_schema_extra={"allowed": f"a list of 1 to {MAX_CHAIN} integers, 0 or more"},
    )
    """Generated problems with an answer in the SFT rows, by chain length: the first number is for
    length 1. GRPO uses the other problems."""

    @property
    def num_reserved(self) -> int:
        """Held-out problems of the generator, and the most of directories and files."""
        return self.num_heldout if isinstance(self.num_heldout, int) else MOST_HELDOUT

    def parts(self) -> list[ProblemSource]:
        """All sources; the keys of a single one count as a list of one."""
        if self.sources is not None:
            return self.sources
        own = {name: getattr(self, name) for name in SourceTable.model_fields}
        return [ProblemSource.model_construct(**own)]

    def key_of(self, index: int) -> str:
        """Prefix of the keys of one of the sources: `problems.` or `problems.sources.1.`."""
        return "problems." if self.sources is None else f"problems.sources.{index}."

    def origin_of(self, index: int) -> str:
        """Name of one of several sources; without one its kind or path, with its number if another
        source has the same."""
        names = [part.label for part in self.parts()]
        return names[index] + (f"-{index}" if names.count(names[index]) > 1 else "")

    @property
    def weights(self) -> dict[str, float]:
        """Weights by origin of the sources that have one."""
        parts = enumerate(self.sources or ())
        return {self.origin_of(i): part.weight for i, part in parts if part.weight is not None}

    @property
    def has_generated(self) -> bool:
        """True if the generator makes some of the problems."""
        return any(part.source == "generated" for part in self.parts())

    @property
    def has_others(self) -> bool:
        """True if some problems come from directories or files."""
        return any(part.source != "generated" for part in self.parts())


class DataSourceTable(Table):
    """Keys of one source of rows: those of `[data]` and of each `[[data.sources]]`."""

    source: Literal["generated", "file"] = "generated"
    """Origin of the rows: the generator's own answers, or a file."""
    path: PathValue | None = None
    """File of conversations (JSON, JSON lines or Parquet), directory of them, or data set on the
    hub; relative to this file or to the working directory; for source = "file". Each row is read by
    its columns: messages (role, content), conversations (from, value: ShareGPT), prompt and
    completion or response, or instruction, input and output (Alpaca). "forge data build" makes
    such a file of reasoning traces, "forge data harvest" of KernelBook and of PyTorch code."""
    format: Literal["messages"] = Field(
        default="messages",
        json_schema_extra={
            "allowed": '"messages"; `forge data build X.toml` makes conversations of traces, with '
            "input.format, `forge data harvest rows:PATH` of KernelBook"
        },
    )
    """Kind of the rows: conversations, the only one."""


class DataSource(DataSourceTable):
    """A `[[data.sources]]`: one of several sources of rows."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Relative frequency of this source's rows in SFT; absent means their number. An epoch has as
    many rows as all sources together, and each source's share of them: rows of a source with a
    large weight occur several times in it, all equally often."""


class DataTable(DataSourceTable):
    """`[data]`: rows for supervised fine-tuning."""

    sources: list[DataSource] | None = Field(
        default=None, min_length=1, json_schema_extra={"allowed": "one [[data.sources]] or more"}
    )
    """Several sources of rows, instead of source and path of one."""
    static_share: Share = 0.0
    """Share of generated first answers with the sizes written as numbers, as torch.compile does,
    instead of read from the tensors. Such an answer is correct, but the model has to multiply to
    write one."""
    repair_share: Share = 0.2
    """Multi-turn rows per single-turn row. Each has one or two wrong answers, the judge's feedback
    on them, and the repaired answer; never more turns than a rollout."""

    def parts(self) -> list[DataSource]:
        """All sources; the keys of a single one count as a list of one."""
        if self.sources is not None:
            return self.sources
        return [DataSource.model_construct(source=self.source, path=self.path)]

    def key_of(self, index: int) -> str:
        """Prefix of the keys of one of the sources: `data.` or `data.sources.1.`."""
        return "data." if self.sources is None else f"data.sources.{index}."

    def origin_of(self, index: int) -> str:
        """Name of a source: `generated`, or its path, shortened to folder and file."""
        path = self.parts()[index].path
        return "generated" if path is None else "/".join(path.parts[-2:])

    @property
    def weights(self) -> dict[int, float]:
        """Weights by index of the sources that have one."""
        parts = enumerate(self.parts())
        return {index: part.weight for index, part in parts if part.weight is not None}

    @property
    def has_generated(self) -> bool:
        """True if the generator makes some of the rows."""
        return any(part.source == "generated" for part in self.parts())

    @property
    def has_files(self) -> bool:
        """True if some rows come from files."""
        return any(part.source == "file" for part in self.parts())


def find_shape_mistakes(shapes: Sequence[Mapping[str, object]]) -> Iterator[tuple[int | None, str]]:
    """Index and message of each shape that cannot be used: one without constants, or one that is
    there twice; None and a message for a wrong number of them. Called for `problems.shapes` and for
    `--shape`."""
    if not 1 <= len(shapes) <= MAX_SHAPES:
        yield None, f"found {len(shapes)} shapes; 1 to {MAX_SHAPES}"
    for index, shape in enumerate(shapes):
        if not shape or {} in shape.values():
            yield index, "found an empty table; at least one constant, such as { N = 1024 }"
        elif shape in shapes[:index]:
            yield index, "found the same shape as before; each shape once"
