"""The input sets of a draw: the problem's own inputs under fresh seeds, with plants in them.

Called by the oracle. The first set is as the problem gives it. In every other one each group of
plants, those of one kind in one tensor, was asked for by the reference itself:

    it matters      with and without the group some output differs by MATTERS or more; else it grows
    it is bearable  outputs are finite where given ones are, of the same shapes, and defined; and no
                    rounding decides: results that round otherwise, by 1e-13, stay equal

else the group is left out. A tensor of which no group matters in any set is insensitive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.called import (
    Called,
    Unjudgeable,
    call,
    dtype_name,
    is_equal,
    laid_out,
    leaves,
    memory_order,
    replaced,
)
from forge.evalpool.judge.numbers.errors.undefined import UndefinedResult
from forge.evalpool.judge.numbers.finite import is_any_finite, is_finite, widened
from forge.evalpool.judge.numbers.input_set import InputSet
from forge.evalpool.judge.numbers.inputs.given import DTYPES, Terms, draw_inputs
from forge.evalpool.judge.numbers.inputs.seeds import fresh_seed, seed_everything
from forge.evalpool.judge.numbers.tolerance import tolerance
from forge.evalpool.judge.wide.compare import LEAST_SCALE, MIN_SLAB, SAME
from forge.evalpool.judge.wide.plants import (
    ROWS,
    Domain,
    Ground,
    Group,
    Looks,
    kinds_for,
    make_groups,
)
from forge.evalpool.judge.wide.reference import CannotWiden, WideReference, kinds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.numbers.opcount import OpCounter

MATTERS = 100.0
"""Least effect of a group of plants, in tolerances of question 1."""
MATTERS_REAL = 4.0
"""The same in the problem's own types, where the reference has no float64."""
STABLE = 0.5
"""Largest difference, in tolerances of question 1, that other roundings make."""
MAX_REAL_ERROR = 0.25
"""Largest distance of eager from float64, in tolerances, on planted inputs that are asked for in
the problem's own types."""
MAX_OWN_ERROR = 10.0
"""The same on inputs as given: beyond it nobody knows what is right."""
NUM_GIVEN_DRAWS = 3
"""Draws of inputs as given before they count as ill-conditioned."""
MIN_SETS = 2
MAX_NOTED = 64
"""Plants that a set names."""
GROWTH = (0, 1, -2)
"""Steps by which a group that does not matter, or is not bearable, is made anew."""
MAX_FURTHER = 3
"""Other groups that are tried for a set of which none mattered."""
LARGE_BYTES = 4 << 20
"""Inputs and outputs above which the groups of a tensor are planted together: a call costs more."""

Outputs = list[torch.Tensor]


@dataclass(kw_only=True)
class WideDraw:
    """The sets of a draw and what they show of the problem."""

    sets: list[InputSet]
    kinds: frozenset[str] = frozenset()
    """Float types that are float64 in `InputSet.wide`; none where everything is narrow."""
    why: str = ""
    """Why it is."""
    insensitive: list[str] = field(default_factory=list[str])
    is_constant: bool = False
    """True if no input matters."""


def make_wide_sets(
    module: Any,
    model: Any,
    *,
    num_sets: int,
    terms: Terms,
    counted: OpCounter | None,
    source: str,
    construct: Callable[[], Any] | None = None,
    use: Callable[[InputSet], None] = lambda _: None,
) -> WideDraw:
    """The sets of one draw, with one state of the model. Raises Unjudgeable.

    Args:
        counted: work of one call (`count_work`), None if unknown.
        construct: makes another model.
        use: called with each set once its inputs and outputs are final.
    """
    draws = _Draws(module, model, terms=terms, counted=counted, source=source, construct=construct)
    sets = [draws.given()]
    use(sets[0])
    num_fit = max(MIN_SETS, terms.max_bytes // max(1, sets[0].num_bytes()))
    for kinds in draws.dealt(min(num_sets, num_fit) - 1):
        sets.append(draws.planted(kinds))
        use(sets[-1])
    for one in sets[1:]:
        one.asks_real = bool(one.plants) and one.real_error <= MAX_REAL_ERROR
    sets[0].asks_real = True
    return WideDraw(
        sets=sets,
        kinds=draws.kinds,
        why=draws.why,
        insensitive=draws.insensitive(),
        is_constant=draws.is_constant(),
    )


class _Draws:
    """One problem with one state of its model."""

    def __init__(
        self,
        module: Any,
        model: Any,
        *,
        terms: Terms,
        counted: OpCounter | None,
        source: str,
        construct: Callable[[], Any] | None,
    ) -> None:
        self._module, self._model, self._terms = module, model, terms
        self._counted, self._source, self._construct = counted, source, construct
        self._close: list[float] = []
        self._changed: list[int] = []
        self._wide: WideReference | None = None
        self.kinds: frozenset[str] = frozenset()
        self.why = ""
        first = self._draw()
        self._domains = [
            Domain.of(pair) for pair in zip(leaves(first), leaves(self._draw()), strict=False)
        ]
        self._first: list[Any] | None = first
        self._outputs: Outputs = []
        """Results of the given set, as they are compared."""
        self._is_finite: list[bool] = []
        self._tried: set[int] = set()
        self._mattering: set[int] = set()
        self._matters_most: list[tuple[int, str]] = []
        """Groups that have mattered."""
        self._varies = False
        self._last: tuple[list[Any], Called] | None = None
        """The last inputs that were borne, and their results in float64."""
        """True if outputs of two draws of given inputs differ."""
        scopes = [vars(module), *(vars(one) for one in _modules(model))]
        self._looks = Looks.of(counted, source, scopes)
        self._may_be_undefined = self._looks.may_be_undefined

    def _draw(self) -> list[Any]:
        seed_everything(fresh_seed())
        given = draw_inputs(self._module, self._terms)
        return replaced(list(given), lambda _, one: one.detach())

    def given(self) -> InputSet:
        """The inputs as the problem gives them. Raises Unjudgeable."""
        error = 0.0
        for _ in range(NUM_GIVEN_DRAWS):
            inputs, self._first = self._first or self._draw(), None
            inputs = replaced(inputs, lambda _, one: one.clone())
            called = call(self._model, inputs, has_state=True)
            self._changed = called.changed()
            outputs = called.results(self._changed)
            self._require(inputs, outputs)
            is_first = not self._outputs
            if is_first:
                self._widen(leaves(inputs), outputs)
            made = self._set(inputs, called, outputs, "given")
            if is_first and self._wide is not None:
                self._learn(inputs, made)
            self._outputs = made.wide or outputs
            self._is_finite = [is_finite(one) for one in self._outputs]
            if (error := made.real_error) <= MAX_OWN_ERROR:
                return made
        raise Unjudgeable(f"ill-conditioned: eager itself is {error:.0f} tolerances from float64")

    def _learn(self, inputs: list[Any], made: InputSet) -> None:
        """Takes note of how the reference in float64 behaves on given inputs."""
        assert self._wide is not None
        assert made.wide is not None
        try:
            self._wide.run(inputs, self._changed, is_watched=self._may_be_undefined)
        except UndefinedResult:
            self._may_be_undefined = False
        if not self._is_stable(inputs, made.wide):
            self._narrow("a rounding decides")
            made.wide, made.real_error = None, 0.0

    def _narrow(self, why: str) -> None:
        self._wide, self.kinds, self.why = None, frozenset(), why

    def _require(self, inputs: list[Any], outputs: Outputs) -> None:
        """Raises Unjudgeable for outputs that nothing can be compared with."""
        if not outputs:
            raise Unjudgeable("the reference returns nothing and changes no input")
        if any(one.is_complex() for one in outputs):
            raise Unjudgeable("the reference returns complex numbers: let it return view_as_real")
        for one in outputs:
            if one.is_floating_point() and one.numel() and not is_any_finite(widened(one)):
                raise Unjudgeable("no value of the reference is finite: any answer would do")
        if self._close:
            return
        again = call(self._model, inputs).results(self._changed)
        if not all(is_equal(*pair) for pair in zip(outputs, again, strict=True)):
            text = "nondeterministic: two runs on the same inputs differ"
            raise Unjudgeable(text, varies=True)
        tolerated = self._terms.tolerated
        self._close = [tolerance(dtype_name(one), tolerated) if one.is_floating_point() else 0.0
                       for one in outputs]  # fmt: skip

    def _widen(self, inputs: Outputs, outputs: Outputs) -> None:
        halves = set[str]() if self._counted is None else self._counted.halves
        try:
            self.kinds = kinds_of(self._model, inputs, outputs, halves)
        except CannotWiden as error:
            self._narrow(str(error))
            return
        is_double = self.kinds == {"float64"}
        own = torch.float64 if is_double else DTYPES[self._terms.precision]
        self._wide = WideReference(
            self._model, self.kinds, source=self._source, own=own, construct=self._construct
        )

    def _set(
        self,
        inputs: list[Any],
        called: Called,
        outputs: Outputs,
        name: str,
        *,
        wide: Called | None = None,
    ) -> InputSet:
        made = InputSet(
            inputs=inputs,
            outputs=outputs,
            errors=[torch.zeros(0) for _ in outputs],
            variant=name,
            changed=self._changed,
            form=called.form,
            state=called.state,
        )
        wide = wide or self._ran_wide(inputs)
        if wide is not None:
            made.wide, made.wide_state = wide.results(self._changed), wide.state
            made.real_error = max(
                (_distance(one, other, scale_rows=False) / close
                 for one, other, close in zip(outputs, made.wide, self._close, strict=True)
                 if close),
                default=0.0,
            )  # fmt: skip
        return made

    def _ran_wide(self, inputs: list[Any]) -> Called | None:
        """A call in float64; None where there is none, from now on for all sets."""
        if self._wide is None:
            return None
        try:
            return self._wide.run(inputs, self._changed)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a reference may insist on its types
            is_ours = isinstance(error, CannotWiden)
            self._narrow(str(error) if is_ours else type(error).__name__)
            return None

    def dealt(self, num_sets: int) -> list[list[tuple[int, str]]]:
        """The groups (tensor, kind) of each planted set: each group in one at least, and loud ones
        of different tensors apart as far as there are sets."""
        assert self._outputs
        values = leaves(self._draw())
        made: list[list[tuple[int, str]]] = [[] for _ in range(max(0, num_sets))]
        if not made:
            return made
        for tensor, domain in enumerate(self._domains):
            value = values[tensor]
            kinds = kinds_for(domain, value, self._looks, num_others=len(_others(values, tensor)))
            offset = random.randrange(len(made))
            for number, kind in enumerate(random.sample(kinds, len(kinds))):
                made[(offset + number) % len(made)].append((tensor, kind))
            for one in made:  # each tensor has plants in each set
                if kinds and all(number != tensor for number, _ in one):
                    one.append((tensor, random.choice(kinds)))
        order = [*ROWS, "large", "edge", "special", "constant"]
        for one in made:
            one.sort(key=lambda each: order.index(each[1]) if each[1] in order else len(order))
        return made

    def planted(self, kinds: Sequence[tuple[int, str]]) -> InputSet:
        """A set with these groups, as far as they matter and are borne."""
        inputs = self._draw()
        outputs = self._results_of(inputs)
        if outputs is None:
            return self.given()
        self._varies = self._varies or self._matters(self._outputs, outputs)
        groups: list[Group] = []
        current, best = inputs, outputs
        is_large = sum(one.nbytes for one in [*leaves(inputs), *outputs]) > LARGE_BYTES
        steps: list[list[tuple[int, str]]] = [[one] for one in kinds]
        if is_large:
            steps = [[one for one in kinds if one[0] == tensor] for tensor in {n for n, _ in kinds}]
        for step in steps:
            found = self._grown(step, current, best)
            if found is not None:
                more, current, best = found
                groups += more
        for kind in self._further(kinds) if not groups else ():
            found = self._grown([kind], current, best)
            if found is not None:
                groups, current, best = found
                break
        if groups and self._wide is not None and not self._is_stable(current, best):
            groups, current = self._stable_alone(groups, inputs)
        return self._final(inputs, current, groups)

    def _further(self, kinds: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Some other groups of the same tensors, for a set of which none mattered."""
        left = [one for one in self._matters_most if one not in kinds]
        return random.sample(left, min(MAX_FURTHER, len(left)))

    def _grown(
        self, kinds: Sequence[tuple[int, str]], inputs: list[Any], outputs: Outputs
    ) -> tuple[list[Group], list[Any], Outputs] | None:
        """Groups of one tensor that matter and are borne beside what is planted, the inputs with
        them, and their results."""
        tensor = kinds[0][0]
        names = [kind for _, kind in kinds]
        can_grow = any(kind in ("large", "constant") for kind in names)
        for size in GROWTH if can_grow else GROWTH[:1]:
            groups = self._made(tensor, names, inputs, size=size)
            if not groups:
                return None
            made = _planted(inputs, groups)
            found = self._results_of(made)
            if found is None:
                if len(names) > 1:  # of several at once, one to blame
                    names = names[len(names) // 2 :]
                continue
            self._tried.add(tensor)
            if self._matters(outputs, found):
                self._mattering.add(tensor)
                self._matters_most += [(tensor, one.kind) for one in groups]
                return groups, made, found
        return None

    def _made(
        self, tensor: int, kinds: Sequence[str], inputs: list[Any], *, size: int
    ) -> list[Group]:
        values = leaves(inputs)
        ground = Ground(
            value=values[tensor].contiguous(),
            domain=self._domains[tensor],
            looks=self._looks,
            others=_others(values, tensor),
            size=size,
        )
        return make_groups(ground, tensor, kinds)

    def _stable_alone(
        self, groups: list[Group], inputs: list[Any]
    ) -> tuple[list[Group], list[Any]]:
        """The groups that leave no decision to a rounding, one after another."""
        kept: list[Group] = []
        current = inputs
        for group in groups:
            made = _planted(current, [group])
            outputs = self._results_of(made)
            if outputs is not None and self._is_stable(made, outputs):
                kept.append(group)
                current = made
        return kept, current

    def _final(self, given: list[Any], inputs: list[Any], groups: list[Group]) -> InputSet:
        """The set of planted inputs; of the given ones where eager does not bear them."""
        for planted, kept in ((inputs, groups), (given, [])):
            known = self._last[1] if self._last and self._last[0] is planted else None
            planted = replaced(planted, lambda _, one: one.clone())
            try:
                called = call(self._model, planted, has_state=True)
                outputs = called.results(self._changed)
            except Exception:
                continue
            if kept and not self._is_as_finite(outputs):
                continue
            name = "planted" if kept else "given"
            made = self._set(planted, called, outputs, name, wide=known)
            noted = [
                (one.tensor, at, one.kind) for one in kept for at in one.at.tolist()[:MAX_NOTED]
            ]
            made.plants = random.sample(noted, min(MAX_NOTED, len(noted)))
            return made
        return self.given()

    def _results_of(self, inputs: list[Any]) -> Outputs | None:
        """Results on inputs; None where the reference does not bear them."""
        self._last = None
        try:
            if self._wide is not None:
                watched = self._may_be_undefined
                called = self._wide.run(inputs, self._changed, is_watched=watched)
                outputs = called.results(self._changed)
                self._last = inputs, called
            else:
                outputs = call(self._model, inputs).results(self._changed)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # outside of its domain a reference may raise anything
            return None
        return outputs if self._is_as_finite(outputs) else None

    def _is_as_finite(self, outputs: Outputs) -> bool:
        """True for outputs of the given shapes that are finite where given ones are all finite, or
        where the reference looks for what is not."""
        if [one.shape for one in outputs] != [one.shape for one in self._outputs]:
            return False
        return all(
            is_finite(one) or not was for one, was in zip(outputs, self._is_finite, strict=True)
        )

    def _is_stable(self, inputs: list[Any], outputs: Outputs) -> bool:
        """True if other roundings in float64 give the same results, and equal elements in another
        order: of two opposite ones, since torch's own is like one of them."""
        assert self._wide is not None
        for noise in (1, -1):
            try:
                other = self._wide.run(inputs, self._changed, noise=noise).results(self._changed)
            except Exception:  # an index that a rounding decides on
                return False
            pairs = zip(outputs, other, strict=True)
            if any(_distance(one, two) > STABLE * SAME for one, two in pairs):
                return False
            if not self._wide.is_open:
                break
        return True

    def _matters(self, outputs: Outputs, others: Outputs) -> bool:
        """True if two results differ so much that no kernel gives one for the other."""
        for one, other, close in zip(outputs, others, self._close, strict=True):
            least = MATTERS * SAME if self._wide is not None else MATTERS_REAL * close
            if one.shape != other.shape or _distance(one, other, scale_rows=False) > least:
                return True
        return False

    def insensitive(self) -> list[str]:
        """Inputs none of whose plants matters."""
        return [f"input {tensor}" for tensor in sorted(self._tried - self._mattering)]

    def is_constant(self) -> bool:
        """True if no input matters."""
        return bool(self._tried) and not self._mattering and not self._varies


def _modules(model: Any) -> list[torch.nn.Module]:
    return list(model.modules()) if isinstance(model, torch.nn.Module) else []


def _others(values: Outputs, tensor: int) -> Outputs:
    one = values[tensor]
    return [
        other.contiguous()
        for number, other in enumerate(values)
        if number != tensor and (other.shape, other.dtype) == (one.shape, one.dtype)
    ]


def _planted(inputs: list[Any], groups: Sequence[Group]) -> list[Any]:
    def put(number: int, one: torch.Tensor) -> torch.Tensor:
        order = memory_order(one)
        for group in groups:
            if group.tensor == number:
                one = group.put(one)
        return laid_out(one, order)

    return replaced(inputs, put)


def _distance(one: torch.Tensor, other: torch.Tensor, *, scale_rows: bool = True) -> float:
    """The largest difference of two results, relative to |one| + the rms of all (of the row, where
    asked, at least LEAST_SCALE of all); infinite where one alone is not finite, or an integer
    differs."""
    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    first, second = widened(one).double(), widened(other).double()
    difference = (first - second).abs_()
    size = first.abs()
    if not bool(torch.isfinite(difference.max() + size.max())):
        is_same = (first == second) | (first.isnan() & second.isnan())
        difference = difference.masked_fill(is_same, 0.0).nan_to_num(float("inf"), float("inf"))
        size = size.nan_to_num(0.0, 0.0, 0.0)
    most = float(size.max()) or 1.0
    scale = (size / most).square_().mean().sqrt_() * most
    if scale_rows and size.ndim and size.shape[-1] >= MIN_SLAB:
        rows = (size / most).square_().mean(-1, keepdim=True).sqrt_() * most
        scale = rows.clamp_(min=float(scale) * LEAST_SCALE)
    size.add_(scale).clamp_(min=torch.finfo(torch.float64).tiny)
    return float(difference.div_(size).max())
