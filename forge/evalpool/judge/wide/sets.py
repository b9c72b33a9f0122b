"""The input sets of a draw: the problem's own inputs under fresh seeds, with plants in them.

Called by the oracle. The first set is as the problem gives it, and of a plain draw all are. In
every other one each group of plants, those of one kind in one tensor, was asked for by the
reference itself:

    it matters      with and without the group some output differs by MATTERS or more; else it grows
    it is bearable  outputs are finite where given ones are, of the same shapes, and defined; and no
                    rounding decides: results that round otherwise, by 1e-14, stay equal

else the group is left out. A tensor of which no group matters in any set is insensitive.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import torch

from forge.evalpool.judge.numbers import called as calls
from forge.evalpool.judge.numbers.given import DTYPES, Terms, draw_inputs
from forge.evalpool.judge.numbers.opcount import OpCounter
from forge.evalpool.judge.wide import plants
from forge.evalpool.judge.wide.arguments import Arguments
from forge.evalpool.judge.wide.compare import BLOCK_ELEMENTS, LEAST_SCALE, SAME, real_question
from forge.evalpool.judge.wide.patterns import FAR
from forge.evalpool.judge.wide.plants import Ground, Group
from forge.evalpool.judge.wide.reference import (
    NOISE,
    CannotWiden,
    UndefinedResult,
    WideReference,
    kinds_of,
)
from forge.evalpool.judge.wide.sought import MIN_ROW, Domain, Looks, opened
from forge.records.examination import Flag

MATTERS, MATTERS_REAL = 100.0, 4.0
"""Least effect of a group of plants, in tolerances of question 1; in those of the problem's own
types where the reference has no float64."""
STABLE, VAST_STABLE = 0.5 * SAME, 512 * NOISE
"""Largest difference that other roundings make; behind vast values no more than they themselves, or
an honest kernel's digits of log2(e) decide."""
MAX_REAL_ERROR, MAX_OWN_ERROR = 0.25, 10.0
"""Largest distance between eager and float64, in tolerances: on planted inputs of question 2; on
given inputs, where a larger one leaves no known right result."""
MAX_SLACK = 0.1
"""Relative difference below which a planted set says something in the problem's own types."""
MANY_ROUNDINGS = 8
"""Roundings in float32 that a kernel's sums may have where one of eager's has one: Welford's over
values far from 0."""
NUM_GIVEN_DRAWS = 3
"""Draws of inputs as given before they count as ill-conditioned."""
KEEPS = (
    "Model keeps more from one call to the next than its tensors, so that a second call gives "
    "something else: let it be a buffer"
)
ROUNDING = "a rounding decides"
"""Why a reference is narrow of which other roundings in float64 make another one."""
NO_ROOM = "no room for results in float64"
VANISHED = 1e-20
"""Outputs all of which are so small beside given ones are nothing but underflow."""
SHRUNK, CANCELLED = 1e-4, 1e-5
"""Outputs below these shares of given ones and of the inputs may be differences of large numbers,
as an entropy is: float64 loses more there than LEAST_SCALE and SAME allow."""
MIN_SETS, NUM_SETS, NUM_TELLING = 2, 5, 2
"""Sets where there is room for no more, and least number where there is: two with loud plants; more
where the reference compares something."""
MAX_NOTED = 64
"""Plants that a set names."""
LARGE_BYTES = 4 << 20
"""Inputs and outputs above which all groups are planted together: a call costs more."""
VAST = {"large", "large row", "grown row"}
"""Kinds whose cubes and sums may overflow in the problem's own types."""
SPLIT = ("constant", "edge", "beyond", "sign", "special")
"""Kinds whose values are tried apart where not all are borne."""
NUM_MOVED, LOUD_ELEMENT, MOST = 4, 8.0, 0.5
"""Elements that are tried, their size in those of the largest one, and the share of an output that
they move if it depends on the whole of an input."""
NUM_AIMED, MIN_AIMED, MAX_AIMED, AIMED_BYTES = 12, 6, 64, 64 << 20
"""Sets for a decision of a candidate's with rows and elements of all kinds; least and largest
number with those of whole inputs; and memory that they share."""
LEAST_SHAKE = 0.1
"""Least change of a parameter."""
NUM_TENSORS = 5
"""Further sets, each with one whole input that is planted, where an output may depend on it as a
whole: on a maximum or a mean of all, or on its bound."""
NUM_JOINED = 4
"""Further sets, each with one whole input whose rows are as `plants.joined_for` says."""
NUM_ASIDE, STATE_SHARE = 6, 1 / 16
"""Most further sets of given inputs, with other parameters and arguments; and largest share of the
memory that parameters and outputs take up then."""

Outputs = list[torch.Tensor]
Made = TypeVar("Made")
Given = ParamSpec("Given")


@dataclass(slots=True, kw_only=True)
class InputSet:
    """Inputs of one call and its results."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    """Outputs of the reference, then the inputs that it changes, as it leaves them."""
    changed: list[int]
    """Positions of those inputs among the tensors of the inputs."""
    form: str
    """As of `Called`."""
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Parameters that the reference changes, as it leaves them."""
    is_open: bool = False
    """True if a rounding decides on integers among `outputs`, as on positions of close values."""
    wide: list[torch.Tensor] | None = None
    """`outputs` in float64 (wide/reference.py); None where the reference has none."""
    exact: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """`outputs`, the integers among them as float64 gives them, where a rounding decides: none is
    asked in float64."""
    plants: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """(tensor, flat index, kind) of some planted elements; tensors as `leaves` numbers them."""
    asks_real: bool = False
    """True if a candidate must answer this set in the problem's own types, too."""
    is_rough: bool = False
    """True if what is planted is loud, and eager bears it in the problem's types."""
    is_partial: bool = False
    """True if what is not finite, in an output or in the reference's, says nothing."""
    slack: float = 1.0
    """Tolerances that it is asked with then: more than one where roundings make a quarter."""
    parameters: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Parameters and buffers of this set that are not the draw's."""
    real_error: float = 0.0
    """Distance of `outputs` from `wide`, in tolerances of the problem's types."""

    @property
    def num_returned(self) -> int:
        """Outputs that the call returned; the others are changed inputs."""
        return len(self.outputs) - len(self.changed)

    def changes(self) -> list[tuple[int, torch.Tensor]]:
        """(input, as the reference leaves it) of each input that it changes."""
        return list(zip(self.changed, self.outputs[self.num_returned :], strict=True))

    def num_bytes(self) -> int:
        tensors = [one for one in self.inputs if isinstance(one, torch.Tensor)]
        return sum(one.nbytes for one in [*tensors, *self.outputs, *(self.wide or ())])


@dataclass(kw_only=True)
class WideDraw:
    """The sets of a draw and what they show of the problem."""

    sets: list[InputSet]
    kinds: frozenset[str] = frozenset()
    """Float types that are float64 in `InputSet.wide`; none where everything is narrow."""
    why: str = ""
    """Why it is."""
    insensitive: list[str] = field(default_factory=list[str])
    needs_statistics: bool = False
    """True if outputs need a norm's statistics that the reference changes."""
    is_constant: bool = False
    """True if no input matters."""


@dataclass(slots=True)
class _Tried:
    """Inputs that the reference bears, and what comes of them."""

    inputs: list[Any]
    outputs: Outputs
    """As they are compared: in float64, if there is one."""
    called: calls.Called | None = None
    """The call in float64."""


@dataclass(slots=True, kw_only=True)
class _Plan:
    turn: int = 0
    """Number of the set among quiet or loud ones."""
    kinds: Collection[str] = ()
    """Kinds of single elements."""
    is_loud: bool = False
    is_rough: bool = False
    """True for a loud one that is asked for in the problem's own types, too."""
    has_arguments: bool = False
    chosen: int = -1
    """The floats of a loud set that have far values: of two, a product would be beyond all other
    results, and beyond what a kernel has for infinity."""
    first_size: int = plants.NEAR
    """Place in LARGE of the first size of the chosen tensor's."""
    whole: str = ""
    """Kind of the chosen tensor as a whole, which nothing else is planted beside."""
    is_shared: bool = False
    """True if others of its shape are of that kind, too: a sum of zeros may be 0."""

    def allows(self, tensor: int, kind: str) -> bool:
        is_alone = kind in plants.ALONE and tensor != self.chosen
        return (kind in plants.LOUD) is self.is_loud and not (self.is_loud and is_alone)


@dataclass(slots=True, kw_only=True)
class _Work:
    plan: _Plan
    start: _Tried
    now: _Tried
    lost: float = 0.0
    """The difference that other roundings make (`_lost`)."""
    groups: list[Group] = field(default_factory=list[Group])
    shared: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """As of `Ground`."""
    taken: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Elements where rows are planted, by tensor."""


class Draws:
    """One problem with one state of its model."""

    def __init__(
        self,
        module: Any,
        model: Any,
        *,
        terms: Terms,
        counted: OpCounter | None,
        source: str,
        construct: Callable[[], Any] | None = None,
        made: Mapping[str, torch.Tensor] | None = None,
        is_wide: bool = True,
        aims: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            aims: `constants` that a candidate compares with, where one of its decisions took one
                side alone on other sets, and the `inputs` that it depends on, None for any.
            counted: operations of one call (`count_work`), None if unknown.
            construct: makes another model.
            made: parameters and buffers as the constructor made them; None as they are.
            is_wide: False where results in float64 have no room.
        """
        self._made = made or {}
        self._module, self._model, self._terms = module, model, terms
        self._counted, self._source, self._construct = counted, source, construct
        modules = model.modules() if isinstance(model, torch.nn.Module) else ()
        self._looks = Looks.of(counted, source, [vars(module), *map(vars, modules)])
        self._aims = aims
        self._aimed = self._looks if aims is None else self._looks.aimed(aims["constants"])
        self._is_watched = self._looks.may_be_undefined
        self._first: list[Any] | None = self._draw()
        others = [] if terms.is_plain else calls.leaves(self._draw())
        pairs = zip(calls.leaves(self._first), others, strict=False)
        self._domains = [
            self._on_device(Domain.of, pair, permutes=self._looks.permutes) for pair in pairs
        ]
        self._has_infinities = any(
            math.isinf(x) for one in self._domains for x in (one.low, one.high)
        )
        self._given: _Tried | None = None
        self._has_other_shapes = self._is_ragged = False
        """True if the last outputs that were refused had other shapes; if shapes depend on data."""
        self._largest: list[float] = []
        """Magnitudes of the given set's outputs; NaN or infinite for those that are not finite."""
        self._close: list[float] = []
        self._changed: list[int] = []
        self._wide: WideReference | None = None
        self._exact: WideReference | None = None
        """The reference in float64 where a rounding decides on integers of it."""
        self.kinds: frozenset[str] = frozenset()
        self.why = ""
        self._has_room = is_wide
        self._arguments = None if terms.is_plain else Arguments(model, self._first, self._looks)
        self._bad: set[tuple[int, str]] = set()
        """(tensor, kind) of rows that the reference does not bear."""
        self._borne: set[int] = set()
        self._mattering: set[int] = set()
        """Tensors of which some group was borne, of which one mattered."""
        self._is_partial = False
        """As of the set that is planted."""
        self._varies = False
        """True if outputs of two draws of given inputs differ."""

    @property
    def _known(self) -> _Tried:
        assert self._given is not None
        return self._given

    def _on_device(self, make: Callable[Given, Made], *of: Given.args, **by: Given.kwargs) -> Made:
        """The result of a function whose new tensors are where the inputs are."""
        with nullcontext() if self._terms.device == "cpu" else torch.device(self._terms.device):
            return make(*of, **by)

    def _draw(self) -> list[Any]:
        calls.seed_everything(calls.seeds.randbytes(calls.SEED_BYTES))
        given = draw_inputs(self._module, self._terms)
        return calls.replaced(list(given), lambda _, one: one.detach())

    def make(self, num_sets: int) -> WideDraw:
        """All of it. Raises Unjudgeable."""
        sets = [*self.sets(num_sets)]
        kept = [name for name in sets[0].state if name.endswith(("running_mean", "running_var"))]
        return WideDraw(
            sets=sets,
            kinds=self.kinds,
            why=self.why,
            needs_statistics=bool(kept) and self.parameters_matter(kept),
            insensitive=self.insensitive(),
            is_constant=self.is_constant(),
        )

    def sets(self, num_sets: int) -> Iterator[InputSet]:
        """The sets of a draw, as many as there is room for. Raises Unjudgeable."""
        first = self.given()
        if self._wide is not None and MIN_SETS * first.num_bytes() > self._terms.max_bytes:
            self._narrow(NO_ROOM)
            first = self.given()
        first.asks_real = True
        yield first
        num_fit = max(MIN_SETS, self._terms.max_bytes // max(1, first.num_bytes()))
        if self._terms.is_plain:
            yield from (self.given() for _ in range(min(num_sets, num_fit) - 1))
            return
        if self._aims is not None:
            most = max(MIN_AIMED, min(MAX_AIMED, AIMED_BYTES // max(1, first.num_bytes())))
            sets = filter(None, map(self._planted, self._aimed_plans()[: min(most, num_fit)]))
            yield from (replace(one, asks_real=False) for one in sets)
            yield from self._aside(1 if self._aims["zeroed"] else 0)
            return
        num_sets = max(num_sets, NUM_SETS) + NUM_TELLING * self._looks.tells_rows
        plans = [*self._plans(min(num_sets, num_fit) - 1), *self._joined_plans()][: num_fit - 1]
        for plan in plans:
            yield self._planted(plan) or self.given()
        room = num_fit - 1 - len(plans)
        whole = map(self._planted, self._whole_plans() if room else ())
        whole = [*itertools.islice(filter(None, whole), min(NUM_TENSORS, room))]
        yield from whole
        yield from self._aside(min(NUM_ASIDE, room - len(whole)))

    def given(self) -> InputSet:
        """The inputs as the problem gives them. Raises Unjudgeable."""
        error = 0.0
        for _ in range(NUM_GIVEN_DRAWS):
            inputs, self._first = self._first or self._draw(), None
            inputs = calls.replaced(inputs, lambda _, one: one.clone())
            called = calls.call(self._model, inputs, has_state=True)
            self._changed = called.changed()
            outputs = called.results(self._changed)
            self._require(inputs, outputs)
            if self._given is None:
                self._widen(calls.leaves(inputs), outputs)
            wide = self._ran_wide(inputs)
            if self._given is None and wide is not None and not self._learns(inputs, wide):
                self._require_conditioned(outputs, wide.results(self._changed))
                if not all(one.is_floating_point() for one in outputs):
                    self._exact = self._wide
                self._narrow(ROUNDING)
                wide = None
            made = self._set(inputs, called, wide)
            made.is_open = wide is not None and self._is_open(made)
            self._given = _Tried(inputs, made.wide or outputs, wide)
            self._largest = [largest(one) for one in self._given.outputs]
            self._free_copied()
            if (error := made.real_error) <= MAX_OWN_ERROR:
                return made
        raise _ill_conditioned(error)

    def _free_copied(self) -> None:
        """Takes domains from inputs that are outputs, too: they hide what is computed."""
        for tensor, one in enumerate(calls.leaves(self._known.inputs)[: len(self._domains)]):
            if self._domains[tensor].form in ("sorted", "symmetric", "sums", "norms") and any(
                output.shape == one.shape and distance(output, one) <= SAME
                for output in self._known.outputs
            ):
                self._domains[tensor] = replace(self._domains[tensor], form="free", fixed=None)

    def _require_conditioned(self, outputs: Outputs, wide: Outputs) -> None:
        """Raises Unjudgeable where a rounding decides about most elements of an output, in which
        eager itself is wrong."""
        for one, other, close in zip(outputs, wide, self._close, strict=True):
            if not close or not one.numel():
                continue
            first, second = calls.widened(one).double(), calls.widened(other).double()
            scale = second.abs() + second.square().mean().sqrt()
            error = float(((first - second).abs() / scale).median()) / close
            if error > MAX_OWN_ERROR:
                raise _ill_conditioned(error)

    def _require(self, inputs: list[Any], outputs: Outputs) -> None:
        """Raises Unjudgeable for outputs that nothing can be compared with."""
        if not outputs:
            raise calls.Unjudgeable("the reference returns nothing and changes no input")
        if any(one.is_complex() for one in outputs):
            raise calls.Unjudgeable(
                "the reference returns complex numbers: let it return view_as_real"
            )
        for one in outputs:
            if (
                one.is_floating_point()
                and one.numel()
                and not calls.is_any_finite(calls.widened(one))
            ):
                raise calls.Unjudgeable("no value of the reference is finite: any answer would do")
        if self._close:
            return
        self._close = [
            real_question(calls.dtype_name(one), self._terms.tolerated).tolerance
            if one.is_floating_point()
            else 0.0
            for one in outputs
        ]
        own = calls.copied(self._model)
        first, second = (
            calls.call_again(own, inputs, self._model).results(self._changed) for _ in range(2)
        )
        is_exact = self._terms.device == "cpu"  # a card adds in another order each time
        if not self.are_again(outputs, first, is_exact=is_exact):
            text = "nondeterministic: two runs on the same inputs differ"
            raise calls.Unjudgeable(text, flag=Flag.NONDETERMINISTIC)
        if not self.are_again(outputs, second, is_exact=is_exact):
            raise calls.Unjudgeable(KEEPS)

    def are_again(self, outputs: Outputs, others: Outputs, *, is_exact: bool = False) -> bool:
        """True if two results are the same, within the tolerance unless asked exactly."""
        pairs = zip(outputs, others, self._close, strict=False)
        return len(outputs) == len(others) and all(
            one.dtype is other.dtype
            and (
                calls.is_equal(one, other)
                or (not is_exact and distance(one, other, by_row=False) <= close)
            )
            for one, other, close in pairs
        )

    def _widen(self, inputs: Outputs, outputs: Outputs) -> None:
        counted = self._counted
        halves = set[str]() if counted is None else counted.halves
        has_floats = counted is None or counted.has_floats
        try:
            if self._terms.is_plain:
                raise CannotWiden("inputs that are not as given end its process")
            if not self._has_room:
                raise CannotWiden(NO_ROOM)
            self.kinds = kinds_of(self._model, inputs, outputs, halves, has_floats=has_floats)
            self._require_room(inputs, outputs)
        except CannotWiden as error:
            self._narrow(str(error))
            return
        is_double = self.kinds == {"float64"}
        own = torch.float64 if is_double else DTYPES[self._terms.precision]
        self._wide = WideReference(
            self._model, self.kinds, source=self._source, own=own, construct=self._construct
        )

    def _require_room(self, inputs: Outputs, outputs: Outputs) -> None:
        """Raises CannotWiden where the sets will have no room, as `sets` would find: on a card the
        first call in float64 may end the attempt. Not of a model with parameters, which a narrow
        attempt does not plant, nor of integers, which a narrow draw has by float64."""
        is_card = self._terms.device != "cpu" and all(one.is_floating_point() for one in outputs)
        if is_card and not self._model.state_dict():
            wide = 8 * sum(one.numel() for one in outputs)
            size = wide + sum(one.nbytes for one in [*inputs, *outputs])
            if MIN_SETS * size > self._terms.max_bytes:
                raise CannotWiden(NO_ROOM)

    def _narrow(self, why: str) -> None:
        self._wide, self.kinds, self.why = None, frozenset(), why

    def _ran_wide(self, inputs: list[Any]) -> calls.Called | None:
        """A call in float64; None where there is none, from now on for all sets."""
        if self._wide is None:
            return None
        try:
            return self._wide.run(inputs, self._changed)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a reference may insist on its types
            self._narrow(str(error) if isinstance(error, CannotWiden) else type(error).__name__)
            return None

    def _learns(self, inputs: list[Any], wide: calls.Called) -> bool:
        """Takes note of the reference in float64 on given inputs. False if a rounding decides."""
        assert self._wide is not None
        if self._is_watched:
            try:
                self._wide.run(inputs, self._changed, is_watched=True)
            except UndefinedResult:
                self._is_watched = False
        return self._is_stable(_Tried(inputs, wide.results(self._changed)))

    def _set(self, inputs: list[Any], called: calls.Called, wide: calls.Called | None) -> InputSet:
        outputs = called.results(self._changed)
        made = InputSet(
            inputs=inputs,
            outputs=outputs,
            changed=self._changed,
            form=called.form,
            state=called.state,
        )
        if wide is not None:
            made.wide = wide.results(self._changed)
            every = zip(outputs, made.wide, self._close, strict=True)
            lost = [distance(one, two, by_row=False) / close for one, two, close in every if close]
            made.real_error = max(lost, default=0.0)
        elif self._exact is not None:
            made.exact = self._exactly(self._exact, inputs, outputs)
        return made

    def _exactly(self, exact: WideReference, inputs: list[Any], outputs: Outputs) -> Outputs:
        """Outputs with the integers of float64; none where that raises."""
        found = _borne(lambda: exact.run(inputs, self._changed).results(self._changed))
        if found is None or [one.shape for one in found] != [one.shape for one in outputs]:
            return []
        pairs = [*zip(outputs, found, strict=True)]
        return [one if one.is_floating_point() else other for one, other in pairs]

    def _plans(self, num_sets: int) -> list[_Plan]:
        """Plans of `num_sets` sets: every kind of single elements in one. Loud ones are apart; the
        same kinds of all tensors go together, for branches that ask for several."""
        every = [kind for one in self._grounds() for kind in plants.elements_for(one)]
        quiet = [one for one in dict.fromkeys(every) if one not in plants.LOUD]
        random.shuffle(quiet)
        is_more = self._looks.tells_rows and num_sets > NUM_SETS
        num_quiet = (num_sets + is_more * NUM_TELLING + random.randrange(2)) // 2
        turn, other = random.randrange(64), random.randrange(64)
        found = [_Plan(turn=turn + n, kinds=quiet[n::num_quiet]) for n in range(num_quiet)]
        tensors = calls.leaves(self._known.inputs)
        floats = [n for n, one in enumerate(tensors) if one.is_floating_point()] or [-1]
        is_half = any(one.is_floating_point() and one.itemsize < 4 for one in tensors)
        for n in range(num_sets - num_quiet):
            is_rough = is_half or not n  # squares of a half type may overflow in any input
            plan = _Plan(turn=other + n, kinds=plants.LOUD, is_loud=True, is_rough=is_rough)
            plan.chosen = floats[plan.turn % len(floats)]
            is_near = plan.is_rough or self._wide is None or "extrema" in self._looks.does
            plan.first_size = plants.NEAR if is_near else 0
            found.append(plan)
        if self._looks.special:  # of which large values would hide some
            found.append(_Plan(turn=other, kinds=("special",), is_loud=True))
        random.shuffle(found)
        for one in found[: max(1, num_sets - 1)]:
            one.has_arguments = True
        return found

    def _aimed_plans(self) -> list[_Plan]:
        """Plans of sets for a decision of a candidate's: quiet ones, three in four of rows."""
        plans = [
            _Plan(turn=2 * n + (n % 4 == 3), kinds=("constant", "other", "tie", "edge"))
            for n in range(NUM_AIMED)
        ]
        is_special = any(one.looks.is_aimed and one.looks.special for one in self._grounds())
        if is_special and all(one.is_floating_point() for one in self._known.outputs):
            special = _Plan(kinds=("special",), is_loud=True)
            plans[:0] = [special, replace(special, turn=2)]
        kinds = [
            (place, one, kind)
            for one in filter(lambda one: one.looks.is_aimed, self._grounds())
            for place, kind in enumerate(plants.tensors_for(one))
        ]
        shared = list[_Plan]()
        for _, one, kind in sorted(kinds, key=lambda each: each[0]):
            plans.append(_Plan(chosen=one.number, whole=kind))
            if kind in plants.SHARED and one.number < min(one.others(), default=0):
                shared.append(replace(plans[-1], is_shared=True))
        return [*plans, *shared]

    def _joined_plans(self) -> list[_Plan]:
        """Plans of inputs in which what is far apart belongs together."""
        found = [
            _Plan(chosen=n, whole=kind, is_shared=one.domain.form == "two")
            for n, one in enumerate(self._grounds())
            for kind in plants.joined_for(one)
        ]
        return random.sample(found, min(NUM_JOINED, len(found)))

    def _whole_plans(self) -> list[_Plan]:
        """Plans of inputs that outputs depend on as a whole; of several tensors, kinds that differ
        come first."""
        grounds = self._grounds()
        kinds = {n: plants.tensors_for(one) for n, one in enumerate(grounds)}
        read = [n for n in kinds if kinds[n] and self._moves_all(grounds[n])]
        first, step = random.randrange(NUM_TENSORS), max(1, NUM_TENSORS // max(1, len(read)))
        turns = [
            ((place - first - step * turn) % len(kinds[n]), turn, n, kind)
            for turn, n in enumerate(random.sample(read, len(read)))
            for place, kind in enumerate(kinds[n])
        ]
        return [
            _Plan(chosen=n, whole=kind, is_shared=kind == "zero row")
            for *_, n, kind in sorted(turns)
        ]

    def _grounds(self) -> list[Ground]:
        work = _Work(plan=_Plan(), start=self._known, now=self._known)
        return [self._ground(work, n) for n in range(len(self._domains))]

    def _moves_all(self, ground: Ground) -> bool:
        """True if a few elements of one row of an input move most of an output, or if it has no
        other rows and some output has less elements, or if Python code or one comparison may
        decide for all of it."""
        length, device = ground.value.shape[-1], ground.value.device
        row = random.randrange(ground.value.numel() // length)
        at = row * length + torch.randint(length, (NUM_MOVED,), device=device)
        old = ground.flat[at].double()
        low, high = (old.new_tensor(one) for one in (ground.domain.low, ground.domain.high))
        if ground.is_float and ground.domain.form == "free":
            low, high = LOUD_ELEMENT * low, LOUD_ELEMENT * high
        turns = torch.arange(NUM_MOVED, device=device) % 2 == 0
        values = torch.where((old == low) | (turns & (old != high)), high, low)
        group = Group(tensor=ground.number, kind="", at=at, values=ground.cast(values))
        found = self._tried(self._with(self._known.inputs, [group]))
        if found is None:
            return False
        return not self._looks.does.isdisjoint(plants.WHOLE_GATES) or any(
            (ground.value.ndim == 1 and 2 * one.numel() < ground.value.numel())
            or (one.shape == other.shape and float((one != other).double().mean()) > MOST)
            for one, other in zip(self._known.outputs, found.outputs, strict=True)
            if one.numel()
        )

    def _planted(self, plan: _Plan) -> InputSet | None:
        """A set with the groups that matter and are borne; None if the reference bears nothing."""
        drawn, self._is_partial = self._draw(), False
        start = self._tried(drawn)
        if start is None and self._has_other_shapes:  # as given: they depend on data
            self._is_ragged = True
            start = self._tried(drawn)
        if start is None:
            return None
        self._varies = self._varies or self._matters(self._known.outputs, start.outputs)
        work = _Work(plan=plan, start=start, now=start)
        self._is_partial = plan.is_loud and self._aims is not None
        if plan.has_arguments:
            self._plant_arguments(work)
        if plan.whole:
            return self._planted_whole(work)
        tensors = random.sample(range(len(self._domains)), len(self._domains))
        for tensor in tensors:
            self._plant_rows(work, tensor)
        is_large = (
            sum(one.nbytes for one in [*calls.leaves(drawn), *work.now.outputs]) > LARGE_BYTES
        )
        for tensor in tensors:
            ground = self._ground(work, tensor)
            found = plants.elements_for(ground)
            own = [one for one in found if one in plan.kinds and plan.allows(tensor, one)]
            if not own and not (plan.is_loud and ground.is_float):
                own = found[:1]
            for part in [own] if is_large and own else [[kind] for kind in own]:
                self._plant_elements(work, tensor, part)
        work.lost = self._lost(work.now)  # what loses little is stable, too
        if work.groups and work.lost > MAX_REAL_ERROR and not self._is_stable(work.now):
            self._plant_stable(work)
            work.lost = self._lost(work.now)
        return self._final(work)

    def _aside(self, num: int) -> Iterator[InputSet]:
        """At most so many sets of given inputs: with parameters as the constructor made them, with
        halves of them whole zeros; and with arguments by which a function may decide."""
        states = self._states() if num > 0 else []
        for _ in range(num):
            if not states and (self._arguments is None or not self._arguments.are_left):
                return
            state = states.pop(0) if states else {}
            with self._having(state) as others:
                start = self._tried(self._draw())
                if start is None or not self._is_settled(start):
                    continue
                work = _Work(plan=_Plan(), start=start, now=start)
                is_other = self._plant_arguments(work, is_special=True)
                made = self._final(work) if is_other or others else None
            if made is not None:
                made.asks_real, made.parameters = False, others
                yield made

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """Parameters and buffers of further sets: of a large problem as they were made alone."""
        made, now = dict(self._made), self._model.state_dict()
        if self._aims is not None:
            return [{n: torch.zeros_like(now[n]) for n in self._aims["zeroed"] if n in now}]
        size = sum(one.nbytes for one in [*made.values(), *self._known.outputs])
        is_moved = any(not torch.equal(one, now[name]) for name, one in made.items())
        if not is_moved or size > STATE_SHARE * self._terms.max_bytes:
            return []
        names = [name for name, one in self._model.named_parameters() if one.is_floating_point()]
        random.shuffle(names)
        is_small = self._wide is not None and size <= LARGE_BYTES
        halves = [names[::2], names[1::2]] if is_small else []
        zeros = [{name: torch.zeros_like(made[name]) for name in half} for half in halves if half]
        turned = {name: -now[name] for name in names if now[name].numel() < MIN_ROW}
        return [made, *({**made, **half} for half in zeros), *([turned] if turned else [])]

    @contextmanager
    def _having(self, state: Mapping[str, torch.Tensor]) -> Generator[dict[str, torch.Tensor]]:
        """Gives the reference other parameters, and says which differ then."""
        models = [self._model, *([] if self._wide is None else [self._wide.model])]
        own = [one.state_dict() for one in models]
        kept = [{name: each[name].clone() for name in state} for each in own]
        try:
            for each in own:
                for name, one in state.items():
                    each[name].copy_(one)
            yield {
                name: own[0][name].clone()
                for name, one in kept[0].items()
                if not torch.equal(own[0][name], one)
            }
        finally:
            for each, before in zip(own, kept, strict=True):
                for name, one in before.items():
                    each[name].copy_(one)

    def _ground(self, work: _Work, tensor: int) -> Ground:
        values = [*map(opened, calls.leaves(work.now.inputs))]
        one, own = values[tensor], self._domains[tensor]
        is_chosen = tensor == work.plan.chosen or not one.is_floating_point()
        return Ground(
            number=tensor,
            size=work.plan.first_size if is_chosen else plants.NEAR,
            value=one.contiguous(),
            domain=own,
            looks=self._looks_at(tensor),
            kin={
                number: other.contiguous()
                for number, other in enumerate(values[: len(self._domains)])
                if number != tensor and other.numel() and self._is_kin(one, own, number, other)
            },
            every=values[: len(self._domains)],
            strangers=self._strangers(one),
            shared=work.shared,
            taken=work.taken.get(tensor),
            turn=work.plan.turn,
            rms=plants.rms_of(opened(calls.leaves(work.start.inputs)[tensor])),
            is_rough=work.plan.is_rough,
        )

    def _looks_at(self, tensor: int) -> Looks:
        """Values that the reference looks for in an input, and a candidate where it is aimed at."""
        inputs = None if self._aims is None else self._aims["inputs"]
        return self._aimed if inputs is None or tensor in inputs else self._looks

    def _is_kin(self, one: torch.Tensor, own: Domain, number: int, other: torch.Tensor) -> bool:
        """True for an input whose values another one may have, or their signs."""
        if own.form not in ("free", "sorted") and not self._domains[number].is_alike(own):
            return own.form == "two" and "decides" in self._looks.does
        is_other = one.is_floating_point() or not other.is_floating_point()
        return other.dtype == one.dtype or (is_other and other.dtype is not torch.bool)

    def _strangers(self, one: torch.Tensor) -> list[torch.Tensor]:
        """Parameters of several rows that an input's may be, where the reference may tell."""
        is_module = "decides" in self._looks.does and isinstance(self._model, torch.nn.Module)
        return [
            each.data
            for each in (self._model.parameters() if is_module else ())
            if each.ndim == 2 and each.dtype == one.dtype and each.shape[-1:] == one.shape[-1:]
        ]

    def _plant_rows(self, work: _Work, tensor: int) -> None:
        """Whole rows: all kinds together, or one after another where not all are borne."""
        ground = self._ground(work, tensor)
        ground.size = plants.NEAR
        kinds = [
            kind
            for kind in plants.rows_for(ground)
            if work.plan.allows(tensor, kind) and (tensor, kind) not in self._bad
        ]
        groups = self._on_device(plants.make_rows, ground, kinds)
        if not groups or self._accepts(work, groups) is not None:
            return
        for kind in dict.fromkeys(one.kind for one in groups):
            if self._accepts(work, [one for one in groups if one.kind == kind]) is None:
                self._bad.add((tensor, kind))

    def _plant_elements(self, work: _Work, tensor: int, kinds: Sequence[str]) -> None:
        is_sized = not {"large", "beyond"}.isdisjoint(kinds)
        ground = self._ground(work, tensor)
        for size in range(ground.size, len(plants.LARGE) if is_sized else plants.NEAR + 1):
            ground.size, is_vast = size, size < plants.NEAR
            groups = self._on_device(plants.make_elements, ground, kinds)
            found = self._accepts(work, groups, is_vast=is_vast) if groups else False
            if found:
                return
            if found is None and len(kinds) > 1:  # one of them is to blame
                for kind in kinds:
                    self._plant_elements(work, tensor, [kind])
                return
            if found is None and kinds[0] in SPLIT:
                for part in self._on_device(plants.parts_of, groups[0]):
                    self._accepts(work, [part])

    def _planted_whole(self, work: _Work) -> InputSet | None:
        """A set with one input as a whole, or with all of its shape."""
        kind, ground = work.plan.whole, self._ground(work, work.plan.chosen)
        others = ground.others() if work.plan.is_shared else []
        last = len(plants.LARGE) if kind == "lowered row" else plants.NEAR + 1
        for size in range(plants.NEAR, last):
            work.groups = []
            for one in (ground, *(self._ground(work, n) for n in others)):
                one.size = size
                is_beside = kind == plants.FEW_EACH and one is not ground
                own = plants.MOST_EACH if is_beside else kind
                work.groups.append(self._on_device(plants.make_tensor, one, own))
            found = self._tried(self._with(work.start.inputs, work.groups))
            if found is not None and self._is_stable(found):
                work.now = found
                if (made := self._final(work)) and made.plants:
                    made.asks_real = False  # next to 0 a kernel's formula may lose all of it
                    return made
        return None

    def _plant_arguments(self, work: _Work, *, is_special: bool = False) -> bool:
        """Other arguments that are no tensors, whichever plants are left out later."""
        if self._arguments is None:
            return False
        found = self._arguments.take(
            work.now.inputs,
            self._tried,
            lambda one, other: self._matters(one.outputs, other.outputs),
            is_special=is_special,
            has_room=not self._changed,
        )
        if found is None or not self._is_settled(found):
            return False
        work.start = work.now = found
        return True

    def _is_settled(self, tried: _Tried) -> bool:
        """True if another call gives the same, with other roundings and random numbers."""
        if self._wide is not None:
            return self._is_stable(tried)
        again = self._tried(tried.inputs)
        return again is not None and not self._matters(tried.outputs, again.outputs)

    def _accepts(self, work: _Work, groups: list[Group], *, is_vast: bool = False) -> bool | None:
        """Plants groups of one tensor if they matter. None if the reference does not bear them, or
        if roundings grow behind vast ones. Whole rows need not matter: to lower one changes no
        softmax, but one that begins with 0."""
        tensor = groups[0].tensor
        found = self._tried(self._with(work.now.inputs, groups))
        if found is None or (is_vast and self._moved(found, [NOISE]) > VAST_STABLE):
            return None
        self._borne.add(tensor)
        matters = self._matters(work.now.outputs, found.outputs)
        is_row = groups[0].kind in plants.ROWS
        if not matters and not is_row:
            return False
        if matters:
            self._mattering.add(tensor)
        work.now = found
        work.start.outputs, work.start.called = [], None  # needed no more
        work.groups += groups
        sizes = [opened(one).numel() for one in calls.leaves(found.inputs)]
        for n, at in (each for one in groups for each in one.stays):
            work.taken.setdefault(n, at.new_zeros(sizes[n], dtype=torch.bool))[at] = True
        return True

    def _plant_stable(self, work: _Work) -> None:
        """Begins again with the groups that leave no decision to a rounding."""
        groups, work.groups, start = work.groups, [], self._tried(work.start.inputs)
        assert start is not None  # as it was before
        work.start = work.now = start
        for group in groups:
            found = self._tried(self._with(work.now.inputs, [group]))
            if found is not None and self._is_stable(found):
                work.groups.append(group)
                work.now = found

    def _with(self, inputs: list[Any], groups: Sequence[Group]) -> list[Any]:
        """The same inputs with plants; tensors without some are not copied."""

        def put(number: int, one: torch.Tensor) -> torch.Tensor:
            own = [group for group in groups if group.tensor == number]
            if not own:
                return one
            made = opened(one).clone(memory_format=torch.contiguous_format)
            for group in own:
                made.view(-1)[group.at] = group.values
                made = self._domains[number].kept(made, group.at)
            made = torch.view_as_complex(made) if one.is_complex() else made.to(one.dtype)
            return calls.laid_out(made, calls.memory_order(one))

        return calls.replaced(inputs, put)

    def _final(self, work: _Work) -> InputSet | None:
        """The set with all groups that eager bears: of some, large values may overflow there."""
        for left_out in (set[str](), VAST, plants.LOUD, {one.kind for one in work.groups}):
            groups = [one for one in work.groups if one.kind not in left_out]
            tried: _Tried | None = work.now
            if len(groups) < len(work.groups):
                tried = self._tried(self._with(work.start.inputs, groups))
            if tried is None:
                continue
            inputs = calls.replaced(tried.inputs, lambda _, one: one.clone())
            called = _borne(lambda given=inputs: calls.call(self._model, given, has_state=True))
            if called is None:
                continue
            found = called.results(self._changed)
            if groups and not self._is_like_given(found, inputs):
                continue
            wide = tried.called if self._wide is not None else None
            if [one.shape for one in found] != [one.shape for one in tried.outputs]:
                continue
            made = self._set(inputs, called, wide)
            share, tensors = max(1, MAX_NOTED // max(1, len(groups))), calls.leaves(inputs)
            noted = [
                (one.tensor, at, one.kind)
                for one in groups
                if not tensors[one.tensor].is_complex()
                for at in one.at[:share].tolist()
            ]
            made.plants = noted[:MAX_NOTED]
            made.slack = max(1.0, max(work.lost, made.real_error) / MAX_REAL_ERROR)
            made.is_open = made.slack > 1.0
            most = made.slack * max(self._close, default=0.0)
            made.is_partial = self._is_partial
            made.asks_real = bool(groups) and most <= MAX_SLACK
            is_far = any(one.kind in FAR for one in groups)
            made.is_rough = made.asks_real and work.plan.is_rough and is_far
            return made
        return None

    def _tried(self, inputs: list[Any]) -> _Tried | None:
        """Results on inputs; None where the reference does not bear them."""

        def run() -> _Tried:
            if self._wide is None:
                return _Tried(inputs, calls.call(self._model, inputs).results(self._changed))
            called = self._wide.run(inputs, self._changed, is_watched=self._is_watched)
            return _Tried(inputs, called.results(self._changed), called)

        found = _borne(run)
        return found if found and self._is_like_given(found.outputs, inputs) else None

    def _is_like_given(self, outputs: Outputs, inputs: list[Any]) -> bool:
        """True for outputs of the given shapes that are finite where all given ones are, and not
        all next to 0; that are numbers, where given inputs have infinities."""
        given = self._known.outputs
        if [one.shape for one in outputs] != [one.shape for one in given]:
            self._has_other_shapes = [one.ndim for one in outputs] == [one.ndim for one in given]
            if not (self._is_ragged and self._has_other_shapes):
                return False
        for one, given in zip(outputs, self._largest, strict=True):
            if not math.isfinite(given):
                continue
            if self._is_partial:
                if not calls.is_any_finite(calls.widened(one)):
                    return False
                continue
            size = largest(one)
            if math.isnan(size) or (size == math.inf and not self._has_infinities):
                return False
            if 0 < size < SHRUNK * given:
                finite = [x for x in map(largest, calls.leaves(inputs)) if math.isfinite(x)]
                if size < max(VANISHED * given, CANCELLED * max(finite, default=0.0)):
                    return False
        return True

    def _is_stable(self, tried: _Tried) -> bool:
        """True if other roundings in float64 give the same results."""
        if self._wide is None:
            return self._lost(tried) <= MAX_REAL_ERROR
        return self._moved(tried, [NOISE, -NOISE]) <= STABLE

    def _lost(self, tried: _Tried) -> float:
        """The difference that other roundings in the problem's own types make, as an honest
        kernel's, in tolerances; infinite where they decide."""
        if self._wide is None:
            return self._lost_to_tf32(tried) if self._terms.is_tf32 else 0.0
        least = min((one for one in self._close if one), default=0.0)
        own = DTYPES[self._terms.tolerated]
        noise = torch.finfo(own).eps * (MANY_ROUNDINGS if own is torch.float32 else 1)
        moved = self._moved(tried, [noise, -noise], by_row=False)
        return moved / least if least else moved

    def _lost_to_tf32(self, tried: _Tried) -> float:
        """The difference that products in TF32 make, as a share of MAX_REAL_ERROR: a kernel may
        have either, within the tolerance."""
        backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
        try:
            kept = [one.allow_tf32 for one in backends]
        except RuntimeError:  # torch does not say it where a problem set it for one operation alone
            return 0.0
        try:
            for one in backends:
                one.allow_tf32 = False
            exact = _borne(lambda: calls.call(self._model, tried.inputs).results(self._changed))
        finally:
            for one, allowed in zip(backends, kept, strict=True):
                one.allow_tf32 = allowed
        every = zip(tried.outputs, exact or [], self._close, strict=exact is not None)
        lost = [distance(one, two) / close for one, two, close in every if close]
        return MAX_REAL_ERROR * (math.inf if exact is None else max(lost, default=0.0))

    def _is_open(self, made: InputSet) -> bool:
        """True if a rounding in the problem's own types decides on integers."""
        if all(one.is_floating_point() for one in made.outputs):
            return False
        noise = MANY_ROUNDINGS * torch.finfo(DTYPES[self._terms.tolerated]).eps
        return self._moved(_Tried(made.inputs, made.wide or []), [noise, -noise]) == math.inf

    def _moved(self, tried: _Tried, noises: Sequence[float], *, by_row: bool = True) -> float:
        """The largest difference that roundings of a size make; infinite where they decide."""
        assert self._wide is not None
        wide, is_on_card = self._wide, self._terms.device != "cpu"
        most, state = 0.0, torch.get_rng_state()
        card_state = torch.cuda.get_rng_state() if is_on_card else state
        for noise in noises:  # with one turned round, too, a tie falls to either side
            torch.set_rng_state(state)
            if is_on_card:
                torch.cuda.set_rng_state(card_state)
            other = _borne(lambda n=noise: wide.run(tried.inputs, self._changed, noise=n))
            if other is None:  # an index that a rounding decides on, or an order of equal elements
                return math.inf
            pairs = zip(tried.outputs, other.results(self._changed), strict=True)
            most = max(most, *(distance(one, two, by_row=by_row) for one, two in pairs))
            del pairs, other
        return most

    def _matters(self, outputs: Outputs, others: Outputs) -> bool:
        """True if two results differ so much that no kernel gives one for the other."""
        least = [
            MATTERS * SAME if self._wide is not None else MATTERS_REAL * one for one in self._close
        ]
        every = zip(outputs, others, least, strict=True)
        return any(distance(one, two, enough=most) > most for one, two, most in every)

    def insensitive(self) -> list[str]:
        """Inputs none of whose plants matters, nor other values of another draw."""
        found: list[str] = []
        for tensor in sorted(self._borne - self._mattering):
            other = calls.leaves(self._draw())[tensor]
            inputs = calls.replaced(
                self._known.inputs, lambda n, one, at=tensor, new=other: new if n == at else one
            )
            tried = self._tried(inputs)
            if tried is not None and self._matters(self._known.outputs, tried.outputs):
                self._mattering.add(tensor)
            else:
                found.append(f"input {tensor}")
        return found

    def parameters_matter(self, names: Iterable[str]) -> bool:
        """True if other values of parameters or buffers, off by about their size, matter."""
        state, other = self._model.state_dict(), dict[str, torch.Tensor]()
        for name in names:
            size = state[name].float().square().mean().sqrt() + LEAST_SHAKE
            other[name] = state[name] + torch.randn_like(state[name]) * size
        with self._having(other):
            tried = self._tried(self._known.inputs)
        return tried is None or self._matters(self._known.outputs, tried.outputs)

    def copied_input(self, sets: Sequence[InputSet]) -> int | None:
        """Number of the input that all outputs are in all sets, whatever its shape."""
        pairs = [(calls.leaves(one.inputs), output) for one in sets for output in one.outputs]
        for number in range(len(pairs[0][0])):
            if all(is_copy(output, inputs[number]) for inputs, output in pairs):
                return number
        return None

    def is_constant(self) -> bool:
        return bool(self._borne) and not self._mattering and not self._varies


def _borne(run: Callable[[], Made]) -> Made | None:
    """The result of a call of the reference; None where it raises, as it may outside of its domain,
    in whatever types it computes."""
    try:
        return run()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None


def _ill_conditioned(error: float) -> calls.Unjudgeable:
    words = f"ill-conditioned: eager itself is {error:.0f} tolerances from float64"
    return calls.Unjudgeable(words, flag=Flag.ILL_CONDITIONED)


# --- distances of two results


def largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of a floating tensor, NaN if an element is; 0 of another one."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    low, high = torch.stack(torch.aminmax(calls.widened(tensor))).tolist()
    return max(-low, high)


def is_copy(output: torch.Tensor, one: torch.Tensor) -> bool:
    """True if an output is an input, whatever its shape."""
    is_alike = (output.numel(), output.dtype) == (one.numel(), one.dtype)
    return is_alike and distance(output, one.reshape(output.shape)) <= SAME


def distance(
    one: torch.Tensor, other: torch.Tensor, *, by_row: bool = True, enough: float = math.inf
) -> float:
    """The largest difference of two results, relative to |one| + the rms of all (of the row, where
    asked, at least LEAST_SCALE of all); infinite where one alone is not finite, or an integer
    differs. The first one above `enough` will do."""
    if one.shape != other.shape:
        return math.inf
    if not one.numel():
        return 0.0
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else math.inf
    if one.numel() >= calls.CHUNK and torch.equal(one, other):
        return 0.0
    length = one.shape[-1] if one.ndim else 1
    rows, others = (calls.widened(each).reshape(-1, length) for each in (one, other))
    whole = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
    if not math.isfinite(whole):
        rows, others = _with_equal_ones(rows, others)
        whole = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
    whole /= math.sqrt(rows.numel())
    tiny = torch.finfo(torch.float64).tiny
    scales = rows.new_full((len(rows), 1), max(whole, tiny), dtype=torch.float64)
    if by_row:
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        scales = norms.div_(math.sqrt(length)).clamp_(min=max(whole * LEAST_SCALE, tiny))
    limit = BLOCK_ELEMENTS if one.device.type == "cpu" else calls.CHUNK
    found, step = 0.0, max(1, limit // length)
    for start in range(0, len(rows), step):
        first = rows[start : start + step].double()
        difference = (first - others[start : start + step]).abs_()
        ratio = float(difference.div_(first.abs().add_(scales[start : start + step])).max())
        found = math.inf if math.isnan(ratio) else max(found, ratio)
        if found > enough:
            break
    return found


def _with_equal_ones(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results with zeros where both are the same and not finite; NaN where one alone is."""
    is_same = ((one == other) | (one.isnan() & other.isnan())) & ~one.isfinite()
    is_bad = ~is_same & ~(one.isfinite() & other.isfinite())
    first = one.masked_fill(is_same | is_bad, 0.0)
    return first, other.masked_fill(is_same, 0.0).masked_fill(is_bad, math.nan)
