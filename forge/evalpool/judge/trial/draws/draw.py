"""A draw of a problem: what a candidate gets and what it must give, by numbers of tensors.

The contents are in `draws.host` for a CPU and in `trial.gpu.draw` for a card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from forge.evalpool.judge.wide.look import are_far

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from forge.evalpool.judge.channel.shm import TensorSpec
    from forge.evalpool.judge.wide.compare import Question
    from forge.evalpool.judge.wide.look import Plant

MAX_USES = 32
"""Candidates judged on one draw of inputs and parameters: a group of 8 with 3 turns on 2 judges
needs it once."""
NUM_TIMED_SETS = 2
"""Sets that no candidate has seen before it is timed."""
WIDE = "float64"
MAX_WORDS = 300
"""Length of what differs between two sets, in words."""

Tree = list[Any]


class Asked(NamedTuple):
    """How a result is compared."""

    question: Question
    exact: int | None = None
    """Number of the same result by float64: eager's own roundings are no demand, and what is as
    near to this one, or the same integer, is right, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """Arguments of one call and what must come of it. Sets of the same form share their places."""

    tree: Tree
    """Its tensors are places."""
    places: tuple[int, ...]
    """Places of its input tensors."""
    slots: tuple[int, ...]
    """Places for its outputs."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    changed: dict[int, int]
    """Inputs that the reference changes, by position, as it leaves them."""
    state: dict[str, int]
    """Parameters that the reference changes, by name, as it leaves them."""
    parameters: dict[int, int] = field(default_factory=dict[int, int])
    """Parameters that are others in this set, by those that they stand for."""
    wide: tuple[int, ...] = ()
    """Outputs, then changed inputs, in float64; empty where there are none."""
    plants: tuple[Plant, ...] = ()
    """Some of the elements that it replaces, for messages."""
    is_planted: bool = False
    """True if elements of its inputs are replaced."""
    asks_real: bool = True
    """True if the question in the problem's own types is asked on it."""
    is_rough: bool = False
    """True if it is asked on loud plants, for results that overflow."""

    @property
    def is_asked_real(self) -> bool:
        """True if what it gives in the problem's types is compared, too."""
        return self.asks_real or not self.wide

    @property
    def is_quiet(self) -> bool:
        """True if it is compared so, and has no loud plants nor other parameters."""
        is_quiet = (self.asks_real and not are_far(self.plants)) or not self.wide
        return is_quiet and not self.parameters

    @property
    def results(self) -> tuple[int, ...]:
        """Outputs, then changed inputs, in the problem's types."""
        return (*self.outputs, *self.changed.values())


@dataclass(slots=True, kw_only=True)
class Draw:
    """`request` and what lies at `contents` go to a candidate; the rest never does."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code."""
    precision: str
    specs: Sequence[TensorSpec]
    """Types and shapes of the oracle's tensors."""
    contents: Sequence[int | None]
    """By place, the tensor that lies there before the first call; None of an output's slot."""
    sets: Sequence[InputSet]
    named: dict[str, int]
    """Tensors of parameters by name, `init.<k>` for those among the constructor's arguments."""
    asked: dict[int, Asked]
    """How each result is compared, by its number."""
    is_sequence: bool
    """True if forward returns a list or tuple."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    flops: int = 0
    """FLOPs of its matrix products, convolutions and attention."""
    has_products: bool = True
    """True if a call has products that TF32 may make inexact, or its operations are unknown."""
    kinds: frozenset[str] = frozenset()
    """Types that are float64 in the wide results."""
    why_narrow: str = ""
    """Why there are none."""
    insensitive: tuple[str, ...] = ()
    """Inputs and parameters on which no output was seen to depend."""
    is_constant: bool = False
    """True if no output depends on any input."""
    reads_training: bool = True
    """True if the reference may do something else after `eval()`."""
    num_uses: int = 0
    num_holders: int = 0
    """Judgements that read it now: its memory is freed when none does."""
    is_retired: bool = False

    @property
    def is_used_up(self) -> bool:
        """True if it has served its candidates: as many as its outputs have numbers, up to
        MAX_USES. A kernel that knows the answers to all input sets need not compute, and feedback
        tells up to three numbers: one that is expected, one that the kernel had, the largest
        error."""
        num_expected = sum(math.prod(self.specs[one].shape) for one in self.sets[0].outputs)
        return self.num_uses >= max(1, min(num_expected, MAX_USES))

    @property
    def changed_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that forward changes on any set."""
        return tuple(dict.fromkeys(name for one in self.sets for name in one.state))

    @property
    def least_bytes(self) -> int:
        """Bytes that the least draw needs: two sets, and parameters."""
        return self.num_bytes + self.io_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs of a set."""
        return self._bytes(self.sets[0].inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs of a set."""
        return self._bytes(self.sets[0].outputs)

    @property
    def io_bytes(self) -> int:
        """Inputs and outputs of one call."""
        return self.input_bytes + self.output_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs, parameters and outputs of one call."""
        return self.io_bytes + self._bytes(self.named.values())

    def parameter(self, name: str, number: int) -> int:
        """The tensor of a parameter before a call on an input set."""
        own = self.named[name]
        return self.sets[number].parameters.get(own, own)

    def differences(self, number: int) -> str:
        """The arguments and parameters of an input set that are not those of the first, in words;
        but for tensors' values."""
        first, own = (dict(_arguments(self.request["sets"][one])) for one in (0, number))
        found = [f"{name}={text}" for name, text in own.items() if first.get(name) != text]
        words = f"where forward gets {', '.join(found)}" if found else ""
        others = self.sets[number].parameters
        if names := [name for name, index in self.named.items() if index in others]:
            words += f"\nwhere parameters are as Model makes them, or 0: {', '.join(names)}"
        return words.strip()[:MAX_WORDS]

    def forms(self, number: int) -> list[tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each expected output of a set."""
        specs = [self.specs[index] for index in self.sets[number].outputs]
        return [(spec.dtype, spec.shape) for spec in specs]

    def is_sketched_by(self, sketch: Draw) -> bool:
        """True if a sketch, of its first set alone, asks for the same program."""
        own, other = ({**one.request, "sets": one.request["sets"][:1]} for one in (self, sketch))
        own["tensors"] = own["tensors"][: len(other["tensors"])]  # those of further sets follow
        return own == other and self._answer == sketch._answer

    @property
    def _answer(self) -> tuple[Any, ...]:
        return self.is_sequence, self.nesting, self.forms(0)

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        return any(math.prod(self.specs[index].shape) for index in self.sets[number].results)

    def is_like_first(self, number: int) -> bool:
        """True if the program of set 0 serves a set, unless its host reads values."""
        trees = self.request["sets"]
        return bool(trees[number] == trees[0])

    @property
    def timed(self) -> list[int]:
        """Sets of timed calls, which one program serves."""
        able = [number for number, one in enumerate(self.sets) if one.is_quiet]
        return [number for number in able if self.is_like_first(number)]

    @property
    def unseen(self) -> list[int]:
        """Sets that no candidate has had in its checked calls: they are first seen when timed, in
        the problem's types. Without planted ones, given ones; one set of each kind stays."""
        able = [number for number in self.timed if number]
        planted = [number for number in able if self.sets[number].is_planted]
        able = planted[1:] or ([] if planted else able)
        return able[max(0, len(able) - NUM_TIMED_SETS) :]

    def _bytes(self, indices: Collection[int]) -> int:
        return sum(self.specs[index].num_bytes for index in indices)


def _arguments(tree: Tree, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of the arguments in a tree."""
    kind, value = tree
    if kind in ("list", "tuple", "dict", "keywords"):
        is_named = kind in ("dict", "keywords")
        for key, part in value if is_named else enumerate(value):
            within = f"{name}[{key!r}]" if name else f"argument {key}"
            yield from _arguments(part, str(key) if kind == "keywords" else within)
    else:
        yield name, repr(value) if kind == "value" else "a tensor"


def widened(spec: TensorSpec, kinds: Collection[str]) -> TensorSpec:
    """A tensor as a program in float64 has it."""
    return replace(spec, dtype=WIDE) if spec.dtype in kinds else spec
