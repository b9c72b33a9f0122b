"""Problems and their shapes, messages, and SFT pairs of a conversation and its answer."""

from __future__ import annotations

import ast
import threading
from dataclasses import dataclass
from enum import StrEnum

_ONE = threading.Lock()


def syntax_tree(source: str) -> ast.Module:
    """The tree of a source. Before 3.11.8, two threads in `ast.parse` at once now and then end in
    SystemError (python/cpython#106905). Raises as `ast.parse`."""
    with _ONE:
        return ast.parse(source)


MAX_SHAPES = 16
"""Maximum number of shapes of a problem: a candidate is judged on one after another."""
INPUT_SETS = "get_input_sets"
"""Name of the function in a problem file that returns the arguments of several calls."""
CHOSEN_SET = "_judged_input_set"
"""Name of the constant that selects one of these sets, counted from 0."""


class Split(StrEnum):
    """The part of a run that a problem belongs to. Splits share no composition."""

    SFT = "sft"
    """SFT pairs contain its answer."""
    GRPO = "grpo"
    """Rollouts are played on it."""
    HELDOUT = "heldout"
    """Only for evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One of the shapes on which a problem is judged."""

    name: str
    """`N=4096, M=100`, or the inputs: `float32[4096, 100]`."""
    source: str
    """Source of the problem at this shape, as in `ReferenceModule`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModule:
    """The part of a problem that a judge needs: the module that a kernel has to match."""

    problem_id: str
    """Unique in a run, the same in all runs with the same seed: `softmax-softmax-relu`,
    `level1/19_ReLU`."""
    source: str
    """Python source with `Model`, `get_inputs()` and `get_init_inputs()`, after overrides of module
    constants."""
    entry_point: str = "Model"
    """Name of the reference class or function; a candidate defines `<entry_point>New`."""
    precision: str = "fp32"
    """Element type that determines the tolerance: fp32, bf16 or fp16."""
    shapes: tuple[Shape, ...] = ()
    """Shapes that module constants select. A candidate has to be correct at each of them; `source`
    has the first. Empty: `source` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ReferenceModule):
    """A reference module, and its place in a run."""

    family: str
    """Kind of a generated problem: `elementwise`, `softmax`, ...; for a file, the name of its
    folder."""
    level: int
    """Difficulty: chain length of a generated problem, or KernelBench level of a file."""
    split: Split
    origin: str = ""
    """Name of its source, if a run has several sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """system, user or assistant."""
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One SFT row: a conversation whose last message is the answer to train."""

    problem_id: str
    messages: tuple[Message, ...]
    """Ends with the assistant's answer. A repair also has broken answers, each followed by the
    judge's feedback, before it."""
    num_turns: int
    """Number of answers: 1, or more for a repair."""
    source: int = 0
    """Index of its source among those of `[data]`."""


def has_input_sets(source: str) -> bool:
    """True if a problem's source defines `get_input_sets()` and none of its sets is selected. False
    for a source that is no Python."""
    if INPUT_SETS not in source:
        return False
    try:
        tree = syntax_tree(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = {name for node in tree.body for name in _bound(node)}
    return INPUT_SETS in names and CHOSEN_SET not in names


def select_input_set(source: str, number: int) -> str:
    """The source with one set of `get_input_sets()` selected, counted from 0."""
    return f"{source.rstrip()}\n\n{CHOSEN_SET} = {number}\n"


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
        case _:
            return []
