"""`[problems]` and `[data]`: problems to solve, and rows for supervised fine-tuning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table
from forge.records.problem import MAX_SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Constant = int | Annotated[float, Field(allow_inf_nan=False)] | bool | str
"""Value of a module constant of a problem file. Infinity and NaN have no literal in Python."""

ConstantsTable = dict[str, Constant | dict[str, Constant]]
"""Values of module constants, and tables of such values by a problem's name or number."""

BasicFamily = Literal["elementwise", "broadcast", "reduction", "softmax", "norm", "matmul"]
"""Families of generated problems that a run has unless it names others."""
FurtherFamily = Literal[
    "convolution", "pooling", "attention", "embedding", "indexing",
    "scan", "masked_softmax", "loss", "channel_norm", "linear",
]  # fmt: skip
"""The other families."""
FAMILY_NAMES: tuple[str, ...] = (*get_args(BasicFamily), *get_args(FurtherFamily))
Dtype = Literal["fp32", "fp16", "bf16"]
"""Element types of generated problems."""


def _list_of(*names: str) -> str:
    return f"a list of {', '.join(json.dumps(name) for name in names)}"


class ProblemsTable(Table):
    """`[problems]`: the problems to solve."""

    source: Literal["generated", "dir"] = "generated"
    """Origin of the problems: the built-in generator, or a directory in KernelBench's layout."""
    path: PathValue | None = None
    """Directory of the problems for source = "dir", relative to this file or to the working
    directory; searched recursively for *.py."""
    overrides: ConstantsTable = Field(default_factory=dict)
    """Values for module constants of the problem files, e.g. { batch_size = 16, dim = 256 }; a
    table by a problem's name or number, e.g. { "3_matmul" = { N = 512 } }, for that file alone. For
    source = "dir"."""
    shapes: list[ConstantsTable] | None = Field(
        default=None,
        json_schema_extra={"allowed": f"a list of 1 to {MAX_SHAPES} tables of constants"},
    )
    """Shapes of the problem files, e.g. [{ N = 1024 }, { N = 4096, M = 100 }]: a table as in
    overrides each, applied after overrides. A candidate has to be correct at all of them, and its
    speed-up is the geometric mean. A shape counts for the files that have one of its constants. For
    source = "dir"."""
    include: list[str] = Field(default_factory=list)
    """Glob patterns of files, relative to path; empty means all files; for source = "dir"."""
    sizes: Literal["small", "gpu"] = "small"
    """Tensor sizes of generated problems. small: for judges without a GPU. gpu: large enough for
    100 µs or more on a GPU."""
    families: Annotated[
        list[Literal["basic", "all"] | BasicFamily | FurtherFamily], Field(min_length=1)
    ] = Field(
        default_factory=lambda: ["basic"],
        json_schema_extra={"allowed": _list_of("basic", "all", *FAMILY_NAMES)},
    )
    """Families of generated problems, by name. basic: elementwise, broadcast, reduction, softmax,
    norm and matmul. all: these and the others. num_heldout is 4 or more for each family."""
    dtypes: Annotated[list[Dtype], Field(min_length=1)] = Field(
        default_factory=lambda: ["fp32"],
        json_schema_extra={"allowed": _list_of(*get_args(Dtype))},
    )
    """Element types of generated problems: each problem has one of them, at random. None is in half
    precision if the judge's tolerance could not tell its chain of operations from a shorter one: of
    ["fp32", "bf16"], about a fifth of the problems is in bf16."""
    num_problems: Annotated[int, Field(ge=64)] = 3200
    """Number of generated problems, all different, divided among SFT, GRPO and evaluation."""
    num_heldout: Positive = 64
    """Problems reserved for evaluation. With source = "dir" and too few files, GRPO and evaluation
    use the same files."""
    allow_flagged: bool = False
    """Train on problems that "forge problems check" flags, instead of leaving them out; for source
    = "dir"."""
    sft_by_level: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = Field(
        default_factory=lambda: [200, 200, 100, 50]
    )
    """Generated problems with an answer in the SFT rows, by chain length: the first number is for
    length 1. GRPO uses the other problems."""


class DataTable(Table):
    """`[data]`: rows for supervised fine-tuning."""

    source: Literal["generated", "file"] = "generated"
    """Origin of the rows: the generator's own answers, or a file."""
    path: PathValue | None = None
    """File of rows (JSON, JSON lines or Parquet), or directory of them, relative to this file or to
    the working directory; for source = "file"."""
    format: Literal["messages", "kernelbook", "trinity"] = "messages"
    """Columns of the rows in a file. messages: a list of messages with role and content.
    kernelbook, trinity: the columns of these data sets."""
    pairs_per_problem: Positive = 1
    """Single-turn rows generated per problem."""
    static_share: Share = 0.0
    """Share of generated first answers with the sizes written as numbers, as torch.compile does,
    instead of read from the tensors. Such an answer is correct, but the model has to multiply to
    write one."""
    repair_share: Share = 0.2
    """Multi-turn rows per single-turn row. Each has one or two wrong answers, the judge's feedback
    on them, and the repaired answer; never more turns than a rollout."""


def find_shape_mistakes(
    shapes: Sequence[Mapping[str, object]],
) -> Iterator[tuple[int | None, str]]:
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
