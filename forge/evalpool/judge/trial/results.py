# pyright: strict
"""Compares what a call left with what the reference gives: one order and one set of words for every
device. Contents, and the formula on them, are a `Content`'s."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from forge.evalpool.judge.channel.shm import FLOATING
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question
from forge.evalpool.judge.wide.patterns import plant_words, spread
from forge.records.verdict import OutputFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forge.evalpool.judge.numbers.protocols import OtherProtocol
    from forge.evalpool.judge.trial.draws import Draw
    from forge.evalpool.judge.wide.compare import Mask
    from forge.evalpool.judge.wide.patterns import Operands, Part, Values

MAX_READ = 1 << 22
"""Elements of an output that its figures are made of, all over it."""
IN_PLACE = "Model changes its {} in place, do as it does: "
STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Names of a norm's statistics in training mode. No output depends on them, and most published
kernels leave them alone."""


def may_stay(name: str, operations: Collection[str]) -> bool:
    """True for a parameter that a program may leave alone though a reference of these operations of
    torch (none: unknown) writes to it: statistics that torch's own norm keeps."""
    is_norm = not operations or any("batch_norm" in one for one in operations)
    return is_norm and name.rpartition(".")[2] in STATISTICS


@dataclass(frozen=True, slots=True)
class Left:
    """Tensors after a call, as a `Content` reads them."""

    number: int
    """Its input set."""
    outputs: Sequence[Any]
    """Outputs, then the inputs that the reference changes."""
    is_kept: bool
    """True if it left alone what the reference leaves alone."""
    parameters: Sequence[Any] | None = ()
    """`Draw.changed_parameters`; None where they are not to be compared."""
    is_right: bool = False
    """True if it was compared before, and is right."""


class Content(Protocol):
    """The tensors of a draw, by their numbers, and the comparison with them."""

    @property
    def draw(self) -> Draw:
        """The draw that has them."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory that it takes up."""
        ...

    def free(self) -> None:
        """Nobody reads it any more."""
        ...

    def mismatch(
        self, got: Any, index: int, question: Question | None, *, name: str, operands: Operands
    ) -> tuple[str, Mask | None] | None:
        """None where a tensor is right under a question, that of the draw by default; else what
        differs in words, and where it does."""
        ...

    def is_unwritten(self, got: Any, index: int) -> bool:
        """True if a call has not written an output."""
        ...

    def is_same(self, got: Any, index: int) -> bool:
        """True if a tensor equals one of the draw to the last bit."""
        ...

    def values(self, index: int, *, name: str) -> Values:
        """The elements of a tensor."""
        ...

    def values_of(self, got: Any, index: int) -> Values:
        """The elements of what a call left in place of a tensor."""
        ...


C = TypeVar("C", bound=Content)


class Pair(NamedTuple):
    """A tensor that a call left, and the number of the expected one."""

    got: Any
    expected: int
    name: str


@dataclass(slots=True, kw_only=True)
class Results(Generic[C]):
    """The expected results of one draw, under the question that is asked."""

    content: C
    protocol: OtherProtocol | None = None
    """Another project's, which compares one output; None for ours."""
    is_wide: bool = False
    """True while the question is asked in float64."""
    is_narrow: bool = False
    """True if the program, but not the reference, has no float64: integers must be equal in the
    problem's types."""

    def mismatch(self, left: Left, number: int | None = None) -> str | None:
        """The first difference of what a call left from the results of its set, or of another."""
        if left.is_right and number is None:
            return None
        number = left.number if number is None else number
        draw = self.content.draw
        if self.protocol is not None and (len(draw.sets[number].outputs) != 1 or draw.is_sequence):
            return ONE_TENSOR
        for pair in self.pairs(left, number):
            kind, _, name = pair.name.partition(" ")
            stays = kind == "parameter" and may_stay(name, draw.names)
            if stays and self.content.is_same(pair.got, draw.parameter(name, number)):
                continue
            if found := self._difference(pair, number):
                return found if kind == "output" else IN_PLACE.format(kind) + found
        return None

    def pairs(self, left: Left, number: int | None = None) -> list[Pair]:
        """Outputs, changed inputs and, in the problem's types, parameters, each with the expected
        one."""
        draw = self.content.draw
        number = left.number if number is None else number
        one = draw.sets[number]
        if self.protocol is not None:
            return [Pair(left.outputs[0], next(iter(one.outputs)), "output")]
        num = len(one.outputs)
        names = ["output"] if num == 1 else [f"output {k}" for k in range(num)]
        names += [f"input {position}" for position in one.changed]
        indices = one.wide if self.is_wide else one.results
        found = [Pair(*each) for each in zip(left.outputs, indices, names, strict=True)]
        if self.is_wide or left.parameters is None:
            return found
        for got, name in zip(left.parameters, draw.changed_parameters, strict=True):
            index = one.state.get(name, draw.parameter(name, number))
            found.append(Pair(got, index, f"parameter {name}"))
        return found

    def question(self, index: int) -> Question | None:
        """The question that a result is under here, if it is not the draw's."""
        if self.protocol is not None:
            tolerance = self.protocol.tolerances[self.content.draw.precision]
            return Question(tolerance, is_close=True)
        is_integer = self.content.draw.specs[index].dtype not in FLOATING
        return SAME_FUNCTION if self.is_narrow and is_integer else None

    def is_unwritten(self, left: Left) -> bool:
        """True if no output differs from its poison."""
        one = self.content.draw.sets[left.number]
        indices = (one.wide if self.is_wide else one.outputs)[: len(one.outputs)]
        pairs = zip(left.outputs, indices, strict=False)
        return bool(indices) and all(self.content.is_unwritten(*pair) for pair in pairs)

    def tells(self, number: int) -> bool:
        """True if the results of a set are not one number, which many a mistake gives."""
        one = self.content.draw.sets[number]
        every = [self.content.values(index, name="output") for index in one.outputs]
        return any(np.unique(values.take(values.some())).size > 1 for values in every)

    def facts(self, left: Left) -> tuple[OutputFacts, ...]:
        """The figures of what a call left, beside those of the expected results."""
        return tuple(
            output_facts(
                name,
                self.content.values_of(got, index),
                self.content.values(index, name=name),
            )
            for got, index, name in self.pairs(left)
        )

    def _difference(self, pair: Pair, number: int) -> str:
        operands, question = partial(self._operands, number), self.question(pair.expected)
        found = self.content.mismatch(
            pair.got, pair.expected, question, name=pair.name, operands=operands
        )
        if found is None:
            return ""
        words, differs = found
        draw = self.content.draw
        plants = draw.sets[number].plants
        plant = "" if differs is None else plant_words(plants, operands(), differs)
        return "\n".join(filter(None, (words, plant, draw.differences(number))))

    def _operands(self, number: int) -> list[Values]:
        """Inputs of a set, and parameters."""
        draw = self.content.draw
        named = {f"input {k}": index for k, index in enumerate(draw.sets[number].inputs)}
        named |= {f"parameter {name}": draw.parameter(name, number) for name in draw.named}
        return [self.content.values(index, name=name) for name, index in named.items()]


def output_facts(name: str, got: Values, expected: Values) -> OutputFacts:
    """The figures of an output beside those of the expected one."""
    chosen = spread(got.size, MAX_READ)
    found, wanted = got.take(chosen), expected.take(chosen)
    is_nan, is_inf = np.isnan(found), np.isinf(found)
    both = np.isfinite(found) & np.isfinite(wanted)
    low, high, mean = _range(found)
    expected_low, expected_high, expected_mean = _range(wanted)
    return OutputFacts(
        name=name, dtype=expected.dtype, shape=expected.shape,
        num_nan=int(is_nan.sum()), num_inf=int(is_inf.sum()),
        low=low, high=high, mean=mean,
        expected_low=expected_low, expected_high=expected_high, expected_mean=expected_mean,
        largest_error=float(np.abs(found - wanted)[both].max()) if both.any() else None,
    )  # fmt: skip


def _range(values: Part) -> tuple[float, float, float] | tuple[None, None, None]:
    """Least, largest and mean of the finite elements."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None, None, None
    return float(finite.min()), float(finite.max()), float(finite.mean())
