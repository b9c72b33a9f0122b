"""Inputs of one problem with one state of its model, and the results that belong to them.

Called by `input_sets.py`. A set whose inputs are not as the problem gives them stays only where the
reference bears it: it neither fails nor overflows, and eager is within the tolerance of float64.
Where it does not, inputs closer to the given ones are tried, in the end the problem's own under
another seed:

    edges ─▶ fewer kinds of edges ─▶ no edges ─▶ signs kept ─▶ [0, 1] kept ─▶ masks and indices as
    given ─▶ mild ─▶ as given
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.called import (
    Unjudgeable,
    call,
    is_equal,
    laid_out,
    leaves,
    replaced,
)
from forge.evalpool.judge.numbers.errors.logits import has_attention, has_softmax
from forge.evalpool.judge.numbers.errors.nondeterminism import require_same
from forge.evalpool.judge.numbers.errors.norms import has_norm
from forge.evalpool.judge.numbers.errors.own_error import OwnErrors, errors_of, root_mean_square
from forge.evalpool.judge.numbers.errors.undefined import is_defined
from forge.evalpool.judge.numbers.finite import (
    are_finite,
    finite_share,
)
from forge.evalpool.judge.numbers.input_set import InputSet
from forge.evalpool.judge.numbers.inputs import discrete
from forge.evalpool.judge.numbers.inputs.agreement import Agreement
from forge.evalpool.judge.numbers.inputs.discrete import Part, redraw
from forge.evalpool.judge.numbers.inputs.domain import REPEATED, Form
from forge.evalpool.judge.numbers.inputs.edges import SHIFTED, Edges, Kind, Kinds, fewer
from forge.evalpool.judge.numbers.inputs.given import Terms, draw_inputs
from forge.evalpool.judge.numbers.inputs.schedule import HUGE, VAST, Schedule
from forge.evalpool.judge.numbers.inputs.seeds import fresh_seed, seed_everything
from forge.evalpool.judge.numbers.inputs.traits import (
    Traits,
    discrete_alone,
    domains_of,
    operands_of,
    orders_of,
    own_memory,
    related,
)
from forge.evalpool.judge.numbers.inputs.variants import (
    ELEMENTS_A_SPIKE,
    MANY_SPIKES,
    Freedom,
    avoid_bf16_,
    vary_,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from weakref import ref

MAX_OWN_ERROR = 10.0
"""In tolerances: largest own error of eager on the inputs as given. It is added to what a candidate
may be off by, four times; beyond this a wrong answer would pass for the reference's own noise."""
MAX_TF32_ERROR = 100.0
"""The same where TF32 is allowed: it loses about 1e-3 of the output's rms."""
MAX_VARIED_ERROR, MAX_HALF_ERROR = 1.0, 4.0
"""The same on inputs of ours, of which there are others; and in half precision, where eager rounds
what an honest kernel keeps in fp32."""
MORE_TRIES = 2
"""Further ones without edge values before masks and indices are kept, or no input is huge: a set
may be refused for floats that eager itself computes inexactly."""
NUM_GIVEN_DRAWS = 3
"""Draws of inputs as given before they count as ill-conditioned."""
MAX_GROWTH, MAX_UNKNOWN_GROWTH = 1e4, 1e8
"""Largest ratio of outputs at edge values to those of the first set: a square of the large slice
stays below, a recurrence that amplifies it does not. The same for any set whose own error is
unknown."""
MAX_HUGE = 4
"""Sets with a huge input: the first continuous inputs take turns."""
FACTOR = 2.0**12
"""Changes no rounding."""
POSITIONS = (torch.int64, torch.int32)
"""Types of positions that an output may have."""
UNIT_KEPT = 2
"""Step of the freedom that keeps [0, 1] (`Draws._freedoms`)."""
UNIT_ONLY = ("binary_cross_entropy",)
"""Operations that end a process on a GPU for inputs outside of [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The making of one set's inputs, from which they can be made again (`Draws.draw`)."""

    variant: str
    seed: bytes
    freedom: Freedom


class Draws:
    """Inputs of one problem, with one state of its model, and the results that belong to them."""

    def __init__(
        self,
        module: Any,
        model: Any,
        *,
        terms: Terms,
        operations: Collection[str] = (),
        edges: Edges,
        variants: Collection[str] = (),
    ) -> None:
        self._module = module
        self._model = model
        self._terms = terms
        self._operations = operations
        self._edges = edges
        self._schedule = Schedule(variants, edges=edges, operations=operations)
        self._part = Part.WHOLE
        """Part of constants that is drawn anew in the last set."""
        self.kinds: Kinds = frozenset()
        """Kinds of edge values in the last set."""
        self._given: list[Any] | None = None
        """Discrete inputs of the first set, by which constants are recognised."""
        self._traits = Traits()
        self._start = 0
        """Steps of freedom in which the reference failed in an earlier set."""
        self._huge = -1
        """Number of sets with a huge input so far, less one: the inputs take turns."""
        self.num_huge = 1
        """Number of such sets in which each input has its turn."""
        self._scaling: frozenset[int] = frozenset()
        """Inputs that outputs are in proportion to, though there is a softmax: no score has one."""
        self._orders: dict[int, tuple[int, ...]] = {}
        """Orders of memory of the inputs that are given transposed and that no call changes."""
        self._taken: dict[int, ref[torch.Tensor]] = {}
        """Inputs as the problem gave them, by the address of their memory."""
        self._finite_share = 1.0
        """Share of the first set's outputs that is finite."""
        self._is_defined = False
        """True if torch may leave results open (errors/undefined.py), the first set's not."""
        self._is_copy = False
        """True if an output is an input in the first set: forms of inputs hide what is computed."""
        self._repeating: set[int] = set()
        """Positions of inputs whose rows repeat themselves."""
        self._typical: list[float] = []
        """Root mean square of each output of the first set."""
        self._has_scalars = False
        """True if arguments that are numbers, as 0.5, take other values."""
        self._is_inexact = False
        """True if the last set was refused for eager's own error: others may have less."""
        self._must_decide = not edges.is_rounding
        """True if sets on which a rounding decides on an integer are not used."""
        self._is_open_in_huge = False
        """True if positions would be open where all but one value may underflow."""

    def expect(self, variants: Collection[str]) -> None:
        """As `Schedule.expect`."""
        self._schedule.expect(variants)

    def draw(self, recipe: Recipe) -> list[Any]:
        """The inputs of a recipe: the same for the same recipe, on the same kind of device."""
        seed_everything(recipe.seed)
        given = draw_inputs(self._module, self._terms)
        if self._given is None:
            self._orders = orders_of(given)
        inputs = [own_memory(one, self._taken) for one in given]
        del given
        if recipe.variant == "given" and not recipe.freedom.discrete:
            return inputs
        earlier = leaves(self._given) if self._given is not None else []
        is_adverse = self._terms.is_tf32 and recipe.variant != "given"
        is_huge = recipe.variant == HUGE
        domains = domains_of(inputs)
        operands = operands_of(inputs, domains)
        chosen = operands[self._huge % MAX_HUGE :][:1] if is_huge else ()
        is_vast = is_huge and (not has_softmax(self._operations) or self._scaling >= {*chosen})
        variant = VAST if is_vast else recipe.variant
        kinds = recipe.freedom.kinds
        edges = self._edges if kinds else None
        labels = self._edges if Kind.INTEGERS in kinds else None
        raised = random.choice(operands) if operands and kinds & SHIFTED else None
        alike = [
            number
            for number in operands
            if Kind.CONSTANTS in kinds and domains[number].form is Form.FREE and number != raised
        ]

        def change(number: int, value: torch.Tensor) -> torch.Tensor:
            first = earlier[number] if number < len(earlier) else None
            is_kept = is_huge and number not in chosen
            made, domain = value, domains.get(number)
            if not is_kept and domain is not None and domain.form is not Form.CATEGORICAL:
                is_raised = number == raised
                terms = {"domain": domain, "edges": edges, "is_raised": is_raised}
                vary_(value, variant, recipe.freedom, **terms)
            elif not is_kept and recipe.freedom.discrete:
                made = redraw(
                    value,
                    first,
                    variant=recipe.variant,
                    edges=labels,
                    part=recipe.freedom.part,
                )
            return avoid_bf16_(made) if is_adverse else made

        made = replaced(inputs, change)
        if lists := related(leaves(inputs), leaves(made)):
            made = replaced(made, lambda number, one: lists.get(number, one))
        if recipe.freedom.scalars:
            made = discrete.with_other_scalars(made)
        if alike:
            found = leaves(made)
            self._edges.plant_equal_([found[number] for number in alike])
        return made

    def make(self, variant: str) -> InputSet:
        """A set of a variant; of inputs as given where the reference bears no other. Raises
        Unjudgeable where it does not bear those either."""
        self.kinds = frozenset()
        if self._given is None:
            return self._make_given()
        self._huge += variant == HUGE
        if variant != "given" and not (variant == HUGE and self._is_open_in_huge):
            is_inexact = False
            kinds, self._part = self._schedule.next(variant)
            for step, freedom in self._freedoms(variant, kinds, self._part):
                recipe = Recipe(variant=variant, seed=fresh_seed(), freedom=freedom)
                if (made := self._tried_recipe(recipe)) is not None:
                    self._has_scalars &= freedom.scalars
                    if not freedom.is_mild and not is_inexact:
                        self._start = max(self._start, step)
                    self._schedule.owe(kinds - freedom.kinds)
                    self.kinds = freedom.kinds
                    return made
                is_inexact = is_inexact or self._is_inexact
            self._schedule.owe(kinds)
        if self._traits.has_discrete and not self._terms.is_plain:
            recipe = Recipe(variant="given", seed=fresh_seed(), freedom=Freedom())
            if (made := self._tried_recipe(recipe)) is not None:
                made.variant = "redrawn"
                return made
        return self._make_given()

    def kept(self) -> set[int]:
        """Positions of inputs into which nothing else may be planted: constants of which the last
        set has a part drawn anew, and rows that repeat themselves."""
        if self._part is Part.WHOLE:
            return self._repeating
        given = enumerate(self._given or [])
        constants = {at for at, one in given if isinstance(one, torch.Tensor) and one.numel()}
        return constants | self._repeating

    def tried(self, inputs: list[Any], *, variant: str) -> InputSet | None:
        """The set of inputs that are not as the problem gives them; None where the reference does
        not bear them."""
        limit = MAX_VARIED_ERROR if self._terms.tolerated == "fp32" else MAX_HALF_ERROR
        limit = MAX_TF32_ERROR if self._terms.is_tf32 else limit
        self._is_inexact = False
        try:
            made = self._run(inputs, variant=variant)
            if made is None or (self._is_defined and not is_defined(self._model, made.inputs)):
                return None
        except Exception:  # outside of its domain a reference may raise anything
            return None
        self._is_inexact = made.own_error > limit
        return None if self._is_inexact or self._is_open(made) else made

    def _is_open(self, made: InputSet) -> bool:
        return made.is_open and self._must_decide

    def _tried_recipe(self, recipe: Recipe) -> InputSet | None:
        try:
            inputs = self.draw(recipe)
        except Exception:  # a type without the operations that vary it
            return None
        made = self.tried(inputs, variant=recipe.variant)
        if made is None or self._has_grown(made, recipe) or not self._bears_without_zeros(recipe):
            return None
        return made

    def _bears_without_zeros(self, recipe: Recipe) -> bool:
        """False where slices of zeros alone keep outputs finite: a kernel that multiplies factors
        first, as a scan does in its order on a card, finds infinity times zero there."""
        kinds = recipe.freedom.kinds
        if Kind.ZEROS not in kinds:
            return True
        others = replace(recipe.freedom, kinds=kinds - {Kind.ZEROS})
        try:
            outputs = call(self._model, self.draw(replace(recipe, freedom=others))).results()
        except Exception:  # outside of its domain a reference may raise anything
            return False
        return self._is_finite_enough(outputs)

    def _has_grown(self, made: InputSet, recipe: Recipe) -> bool:
        """True if outputs are so much larger than those of the first set that a recurrence has
        amplified its roundings, too, and these are unknown or edge values are to blame."""
        if not recipe.freedom.kinds and any(one.numel() for one in made.errors):
            return False
        limit = MAX_GROWTH if recipe.freedom.kinds else MAX_UNKNOWN_GROWTH
        sizes = [root_mean_square(one) for one in made.outputs if one.is_floating_point()]
        typical = [size for size in self._typical if size > 0]
        return bool(sizes and typical) and max(sizes) > limit * max(typical)

    def _make_given(self) -> InputSet:
        limit = MAX_TF32_ERROR if self._terms.is_tf32 else MAX_OWN_ERROR
        error, found = 0.0, None
        for _ in range(NUM_GIVEN_DRAWS):
            freedom = Freedom(discrete=False)
            recipe = Recipe(variant="given", seed=fresh_seed(), freedom=freedom)
            inputs = self.draw(recipe)
            made = self._run(inputs, variant="given", is_finite_only=False)
            assert made is not None
            if self._given is None:
                terms = self._terms
                is_cpu = terms.device == "cpu"
                require_same(self._model, made, precision=terms.tolerated, is_cpu=is_cpu)
            if (error := made.own_error) <= limit:
                found = made, inputs
                if not self._is_open(made):
                    break
        if found is not None:
            made, inputs = found
            if self._given is None:
                self._must_decide &= not made.is_open  # of many integers, some are close
                self._learn(made, inputs)
            return made
        raise Unjudgeable(f"ill-conditioned: eager itself is {error:.0f} tolerances from float64")

    def _learn(self, made: InputSet, inputs: list[Any]) -> None:
        """Takes note of the first set, to which all others are related."""
        domains = domains_of(inputs)
        self._traits = Traits.of(inputs, domains)
        self._given = replaced(inputs, lambda number, one: discrete_alone(one, domains.get(number)))
        given = leaves(inputs)
        found = {id(given[number]) for number, one in domains.items() if one.form in REPEATED}
        self._repeating = {at for at, one in enumerate(inputs) if id(one) in found}
        operands = operands_of(inputs, domains)[:MAX_HUGE]
        self.num_huge = max(1, len(operands))
        if self._terms.is_tf32 and has_softmax(self._operations) and not self._is_unit_only():
            self._scaling = frozenset(one for one in operands if self._scales(made, one))
        self._finite_share = finite_share(made.outputs)
        self._is_defined = self._edges.may_be_undefined and is_defined(self._model, inputs)
        self._has_scalars = self._terms.device == "cpu" and discrete.has_scalars(inputs)
        self._is_copy = any(
            Agreement(self._terms.tolerated)([output], [one])
            for output in made.outputs
            for one in leaves(inputs)
            if one.shape == output.shape and one.dtype is output.dtype
        )
        has_positions = any(one.dtype in POSITIONS for one in made.outputs)
        is_open = has_positions and not self._edges.is_decided
        self._is_open_in_huge = is_open and has_softmax(self._operations)
        self._schedule.learn(
            has_discrete=self._traits.has_discrete,
            has_positions=has_positions,
            has_many_spikes=any(
                one.numel() > MANY_SPIKES * ELEMENTS_A_SPIKE for one in leaves(inputs)
            ),
        )
        self._typical = [
            root_mean_square(one) if one.is_floating_point() else 0.0 for one in made.outputs
        ]

    def _is_unit_only(self) -> bool:
        return any(one in name for name in self._operations for one in UNIT_ONLY)

    def _scales(self, made: InputSet, number: int) -> bool:
        """True if outputs grow by the factor of an input, to the bit."""
        given = replaced(made.inputs, lambda at, one: one * FACTOR if at == number else one)
        try:
            outputs = call(self._model, given).results(made.changed)
        except Exception:  # outside of its domain a reference may raise anything
            return False
        pairs = zip(made.outputs, outputs, strict=True)
        return all(
            one.is_floating_point() and is_equal(one * FACTOR, other) for one, other in pairs
        )

    def _freedoms(self, variant: str, kinds: Kinds, part: Part) -> Iterator[tuple[int, Freedom]]:
        """From the widest that the reference may bear, with their steps: each step keeps more of
        the given inputs, whatever edge values there are."""
        traits = self._traits
        free = Freedom(forms=self._is_copy, part=part)
        kept = replace(free, signs=False, unit=False)
        is_by_chance = traits.has_discrete or variant == HUGE
        more = [frozenset[Kind]()] * MORE_TRIES if is_by_chance else []
        steps = [
            (free, True, [*fewer(kinds), *more]),
            (replace(free, signs=False), traits.has_non_negative, fewer(kinds - {Kind.RAISED})),
            (kept, traits.has_unit, [frozenset[Kind]()]),
            (replace(kept, discrete=False), traits.has_discrete, [frozenset[Kind]()]),
            (replace(kept, discrete=False, is_mild=True), True, [frozenset[Kind]()]),
        ]
        start = self._start
        if self._is_unit_only():
            start = max(start, UNIT_KEPT)
        for step, (freedom, is_news, selections) in enumerate(steps):
            if step >= start and (is_news or step == start):
                for selection in selections:
                    chosen = replace(freedom, kinds=selection)
                    if self._has_scalars:
                        yield step, replace(chosen, scalars=True)
                    yield step, chosen

    def _run(
        self, inputs: list[Any], *, variant: str, is_finite_only: bool = True
    ) -> InputSet | None:
        """Eager's outputs and errors. None for outputs that are not finite where given ones are, or
        mostly not."""
        inputs = self._laid_out(inputs)
        called = call(self._model, inputs, has_state=True)
        changed = called.changed()
        if transposed := self._orders.keys() & set(changed):
            self._orders = {n: one for n, one in self._orders.items() if n not in transposed}
            inputs = self._laid_out(inputs)
            called = call(self._model, inputs, has_state=True)
            changed = called.changed()
        outputs, form, state = called.results(changed), called.form, called.state
        del called  # at full size inputs are gigabytes
        if not outputs:
            raise Unjudgeable("the reference returns nothing and changes no input")
        if is_finite_only and not self._is_finite_enough(outputs):
            return None
        if not self._terms.needs_errors:
            errors = OwnErrors.unknown(outputs)
        else:
            errors = errors_of(
                self._model,
                inputs,
                outputs,
                changed=changed,
                is_tf32=self._terms.is_tf32,
                precision=self._terms.tolerated,
                has_large_logits=variant == HUGE and has_softmax(self._operations),
                has_norms=has_norm(self._operations),
                has_scaled_halves=has_attention(self._operations),
            )
        return InputSet(
            inputs=inputs,
            outputs=outputs,
            errors=errors.packed,
            own_error=errors.largest,
            variant=variant,
            changed=changed,
            state=state,
            form=form,
            scales=errors.scales,
            is_open=errors.is_open,
        )

    def _laid_out(self, inputs: list[Any]) -> list[Any]:
        """The same inputs in the order of memory in which the problem gives them."""
        return replaced(
            inputs, lambda number, one: laid_out(one.contiguous(), self._orders.get(number))
        )

    def _is_finite_enough(self, outputs: list[torch.Tensor]) -> bool:
        """True for outputs that are finite, or where given ones are not, at least half as often."""
        if self._finite_share == 1.0:
            return are_finite(outputs)
        return finite_share(outputs) >= self._finite_share / 2
