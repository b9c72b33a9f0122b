"""Policies: cheats of structure that each must be refused, and honest programs that must not."""

import dataclasses
from typing import Any

import pytest

from forge.evalpool.judge.program.dataflow import Access, Lookup
from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Node,
    Origin,
    Program,
    Storage,
    Tensor,
)
from forge.evalpool.judge.program.ops import Kind
from forge.evalpool.judge.program.policy import (
    Policy,
    ProblemFacts,
    Refusal,
    Rule,
    facts_of,
    judge_policy,
)
from tests.evalpool.program.programs import build, dense, launch, op, pointers

KERNELS = [pointers("kernel", "*fp32", "*fp32"), pointers("both", "*fp32", "*fp32", "*fp32")]
ACCESSES = {0: [Access.READ, Access.WRITE], 1: [Access.READ, Access.READ, Access.WRITE]}

X, W, BIAS, PACKED, Y, PARTIAL, ONE, MANY, LIKE_X = (f"t{at}" for at in range(9))
"""Tensors by role: input, parameters, init's buffer; forward's buffers."""

WIDE = (1024, 1024)


def program(*forward: Node, init: list[Node] | None = None, output: str = Y) -> Program:
    """A problem of 12 MB: `y = f(x, w)` over a million elements each."""
    return build(
        inputs=[WIDE],
        parameters={"w": WIDE, "bias": (1024,)},
        init_buffers=[WIDE],
        buffers=[WIDE, (1024,), (1,), (64, *WIDE), WIDE],
        kernels=KERNELS,
        init=init,
        forward=list(forward),
        outputs=[int(output[1:])],
    )


FACTS = ProblemFacts(num_bytes=3 * 4 * 1024 * 1024, needed_inputs=frozenset({0}))
RUN = launch(0, X, Y)


def judged(made: Program, policy: Policy = "own", **facts: Any) -> Refusal | None:
    return judge_policy(made, dataclasses.replace(FACTS, **facts), policy, ACCESSES)


def rule(made: Program, policy: Policy = "own", **facts: Any) -> Rule | None:
    refusal = judged(made, policy, **facts)
    return refusal.rule if refusal else None


def into(name: str, *arguments: Any, to: str, **keywords: Any) -> Node:
    return op(name, *arguments, results=(int(to[1:]),), line=12, **keywords)


# --- honest programs


HONEST: dict[str, Program] = {
    "a launch": program(RUN),
    "a fill before it": program(into("aten.zero_.default", Y, to=Y), launch(0, X, Y)),
    "a copy for its layout": program(
        into("aten.clone.default", X, to=LIKE_X), launch(0, LIKE_X, Y)
    ),
    "partial results combined": program(
        launch(0, X, PARTIAL), into("aten.sum.default", PARTIAL, to=ONE), output=ONE
    ),
    "a weight prepared as (1 + w)": program(
        into("aten.add.Tensor", BIAS, 1.0, to=PARTIAL), launch(1, X, PARTIAL, Y)
    ),
    "weights folded in init": program(
        launch(1, X, PACKED, Y), init=[into("aten.mm.default", W, W, to=PACKED)]
    ),
    "a workspace of init": program(launch(0, X, PACKED), launch(0, PACKED, Y)),
    "a result put in its place": program(
        launch(0, X, LIKE_X), into("aten.copy_.default", Y, LIKE_X, to=Y)
    ),
    "random weights that the parameters replace": program(
        RUN,
        init=[
            into("aten.uniform_.default", PACKED, to=PACKED),
            into("aten.copy_.default", PACKED, W, to=PACKED),
        ],
    ),
}


@pytest.mark.parametrize("made", HONEST.values(), ids=HONEST.keys())
@pytest.mark.parametrize("policy", ["own", "hybrid"])
def test_honest_programs_may_be_judged(made: Program, policy: Policy) -> None:
    assert judged(made, policy) is None


@pytest.mark.parametrize(("rows", "expected"), [(0, None), (1, Rule.OUTPUT)])
def test_an_output_without_elements_needs_no_launch(rows: int, expected: Rule | None) -> None:
    made = program(RUN)
    buffer = made.tensors[int(PARTIAL[1:])]
    added = dataclasses.replace(buffer, shape=(rows, 4), strides=(4, 1))
    outputs = (*made.outputs, len(made.tensors))
    assert rule(dataclasses.replace(made, tensors=(*made.tensors, added), outputs=outputs)) is (
        expected
    )


# --- cheats under `own`


CHEATS: dict[str, tuple[Rule, Program]] = {
    "a product by torch, then an identity kernel": (
        Rule.HEAVY,
        program(into("aten.mm.default", X, W, to=LIKE_X), launch(0, LIKE_X, Y)),
    ),
    "pointwise work by torch, then a copy": (
        Rule.COMBINE,
        program(into("aten.relu.default", X, to=LIKE_X), launch(0, LIKE_X, Y)),
    ),
    "a fused activation by torch": (
        Rule.COMBINE,
        program(into("aten.gelu.default", X, to=LIKE_X), launch(0, LIKE_X, Y)),
    ),
    "a whole reduction by torch, and a kernel that adds 0": (
        Rule.COMBINE,
        program(into("aten.sum.dim_IntList", X, [1], to=PARTIAL), launch(0, PARTIAL, Y)),
    ),
    "a reduction in pieces, each below the share": (
        Rule.COMBINE,
        program(*[into("aten.sum.default", PARTIAL, to=ONE)] * 40, RUN),
    ),
    "a product with diag(a) as a broadcast": (
        Rule.COMBINE,
        program(into("aten.mul.Tensor", BIAS, W, to=LIKE_X), launch(1, X, LIKE_X, Y)),
    ),
    "a sum over an expanded tensor": (
        Rule.COMBINE,
        program(into("aten.sum.dim_IntList", MANY, [0], to=LIKE_X), launch(1, X, LIKE_X, Y)),
    ),
    "a convolution by FFT": (
        Rule.HEAVY,
        program(into("aten._fft_r2c.default", X, [1], 0, True, to=LIKE_X), RUN),
    ),
    "softmax by torch on a few rows": (
        Rule.HEAVY,
        program(into("aten._softmax.default", BIAS, 0, False, to=PARTIAL), RUN),
    ),
    "truncation by a cast": (
        Rule.COMBINE,
        program(into("aten.copy_.default", LIKE_X, X, to="t9"), launch(0, X, Y)),
    ),
    "sorted data": (
        Rule.COMBINE,
        program(into("aten.sort.default", X, to=LIKE_X), launch(0, LIKE_X, Y)),
    ),
    "a function of 16 bits by a table": (
        Rule.INDEX,
        program(into("aten.index.Tensor", BIAS, ["t9"], to=LIKE_X), launch(0, LIKE_X, Y)),
    ),
    "a scatter that adds": (
        Rule.COMBINE,
        program(into("aten.scatter_add.default", X, 0, "t9", X, to=LIKE_X), RUN),
    ),
    "random numbers by torch": (
        Rule.RANDOM,
        program(into("aten.bernoulli_.float", LIKE_X, 0.5, to=LIKE_X), launch(1, X, LIKE_X, Y)),
    ),
    "nothing but torch": (Rule.OUTPUT, program(into("aten.clone.default", X, to=Y))),
    "a launch beside the output": (
        Rule.OUTPUT,
        program(launch(0, X, LIKE_X), into("aten.clone.default", X, to=Y)),
    ),
    "a launch that a copy undoes": (
        Rule.OUTPUT,
        program(RUN, into("aten.copy_.default", Y, X, to=Y)),
    ),
    "an output that ignores the input": (Rule.INPUT, program(launch(0, W, Y))),
}  # fmt: skip


def with_integers(made: Program) -> Program:
    """The program with a tensor 9 of integers over a storage of its own."""
    held = Storage(num_bytes=8 << 20, origin=made.storages[-1].origin)
    indices = dense(len(made.storages), *WIDE, dtype="int64")
    return dataclasses.replace(
        made, storages=(*made.storages, held), tensors=(*made.tensors, indices)
    )


@pytest.mark.parametrize(("expected", "made"), CHEATS.values(), ids=CHEATS.keys())
def test_cheats_are_refused_under_own(expected: Rule, made: Program) -> None:
    refusal = judged(with_integers(made))
    assert refusal.rule == expected
    assert refusal.line == (12 if "line 12" in refusal.message else 0)


def test_a_refusal_names_the_operation_and_the_amounts() -> None:
    _, made = CHEATS["pointwise work by torch, then a copy"]
    refusal = judged(made)
    assert refusal.message == (
        "op 1 of 1: aten.relu, line 12: operations like this (combine) move 8388608 bytes; "
        "125829 are allowed in this problem, so a kernel must do it"
    )


def test_the_alternatives_of_an_open_choice_are_judged_each() -> None:
    _, cheat = CHEATS["a product by torch, then an identity kernel"]
    honest = Alternative(label="BLOCK: 32", nodes=(RUN,))
    product = Alternative(label="BLOCK: 64", nodes=cheat.forward)
    choice = Choice(alternatives=(honest, product, honest))
    refusal = judged(program(choice))
    assert refusal.message.startswith("op 1 of 1: aten.mm, line 12")
    assert judged(program(dataclasses.replace(choice, chosen=2))) is None
    assert rule(program(dataclasses.replace(choice, chosen=1))) == Rule.HEAVY


# --- small problems


def small(elements: int) -> tuple[Program, ProblemFacts]:
    """`loss = sum(kernel(x))` over [elements, 10] with one partial result for each row."""
    made = build(
        inputs=[(elements, 10)],
        buffers=[(elements,), (1,)],
        kernels=KERNELS,
        forward=[launch(0, X, "t1"), op("aten.sum.default", "t1", results=(2,))],
        outputs=[2],
    )
    return made, ProblemFacts(num_bytes=elements * 40, needed_inputs=frozenset({0}))


def ruled(made: Program, facts: ProblemFacts = FACTS, lookups: Any = None) -> Rule | None:
    refusal = judge_policy(made, facts, "own", ACCESSES, lookups)
    return refusal.rule if refusal else None


def test_partial_results_of_small_problems_alone_may_be_combined() -> None:
    assert ruled(*small(128)) is None
    assert ruled(*small(10_000)) == Rule.COMBINE
    made, facts = small(16)
    cheat = op("aten.sum.dim_IntList", X, [1], results=(1,))
    whole = dataclasses.replace(made, forward=(cheat, launch(0, "t1", "t2")))
    assert ruled(whole, facts) == Rule.COMBINE


# --- tables


LOOKS_UP = {1: {Lookup(tables=2, by=1, targets=0, is_place=True)}}
"""The second kernel reads its second argument at places that the first one has."""
DECIDES = {1: {Lookup(tables=2, by=1, targets=0, is_place=False)}}
"""The first argument of the second kernel decides whether it uses the second one."""


def test_inputs_choose_among_weights_but_not_among_computed_ones() -> None:
    look = launch(1, X, PACKED, Y)
    moved = [into("aten.copy_.default", PACKED, W, to=PACKED)]
    computed = [into("aten.mul.Tensor", W, W, to=PACKED)]
    assert ruled(program(launch(1, X, W, Y)), lookups=LOOKS_UP) is None
    assert ruled(program(look, init=moved), lookups=LOOKS_UP) is None
    assert ruled(program(look, init=computed), lookups=LOOKS_UP) == Rule.TABLE
    launched = program(look, init=[launch(0, W, PACKED)])
    assert ruled(launched, lookups=LOOKS_UP) == Rule.TABLE
    assert ruled(program(look, init=computed)) is None


def test_inputs_decide_whether_weights_are_used_but_not_computed_ones() -> None:
    for init, expected in (
        (into("aten.copy_.default", PACKED, W, to=PACKED), None),
        (into("aten.mul.Tensor", W, W, to=PACKED), Rule.TABLE),
    ):
        assert ruled(program(launch(1, X, PACKED, Y), init=[init]), lookups=DECIDES) == expected


def test_inputs_choose_among_what_a_launch_computes_of_inputs_and_computed_weights() -> None:
    """Labels choose among logits."""
    computed = [into("aten.mul.Tensor", W, W, to=PACKED)]
    made = launch(1, X, PACKED, LIKE_X)
    labels = {1: {Lookup(tables=1, by=2, targets=0, is_place=True)}}
    honest = program(made, launch(1, LIKE_X, X, Y), init=computed)
    assert ruled(honest, lookups=labels) is None
    copied = into("aten.clone.default", PACKED, to=LIKE_X)
    cheat = program(copied, launch(1, LIKE_X, X, Y), init=computed)
    assert ruled(cheat, lookups=labels) == Rule.TABLE


# --- indices


def routed(num_indices: int, name: str = "aten.argsort.default") -> Program:
    """Integers of an input are sorted by torch, then a kernel works on a million elements."""
    made = build(inputs=[WIDE], buffers=[WIDE], kernels=KERNELS, forward=[RUN], outputs=[1])
    made = dataclasses.replace(
        made,
        storages=(
            *made.storages,
            *[Storage(num_bytes=8 << 20, origin=made.storages[1].origin)] * 2,
        ),
        tensors=(*made.tensors, *(dense(at, num_indices, dtype="int64") for at in (2, 3))),
    )
    return dataclasses.replace(made, forward=(into(name, "t2", to="t3"), launch(0, "t0", "t1")))


def test_indices_are_kept_up_to_a_share_of_their_own() -> None:
    facts = ProblemFacts(num_bytes=8 << 20)
    assert ruled(routed(1 << 15), facts) is None
    assert ruled(routed(1 << 16), facts) == Rule.INDEX


# --- problems about moving data


@pytest.mark.parametrize("kinds", [{Kind.COPY}, {Kind.COPY, Kind.CAST, Kind.FILL}, set[Kind]()])
def test_torch_moves_nothing_in_a_problem_about_moving(kinds: set[Kind]) -> None:
    made = HONEST["a copy for its layout"]
    assert rule(made, kinds=frozenset(kinds)) == Rule.MOVES


def test_fills_are_free_unless_the_problem_is_one() -> None:
    made = HONEST["a fill before it"]
    assert judged(made, kinds=frozenset({Kind.COPY})) is None
    assert rule(made, kinds=frozenset({Kind.FILL})) == Rule.MOVES


def test_kinds_of_a_reference() -> None:
    made = program(
        into("aten.cat.default", [X, W], to=MANY),
        into("aten._to_copy.default", X, to=LIKE_X),
        init=[into("aten.mm.default", W, W, to=PACKED)],
    )
    assert facts_of(made).kinds == {Kind.COPY, Kind.CAST}
    unknown = program(into("aten.made_up.default", X, to=Y))
    assert facts_of(unknown).kinds == {Kind.HEAVY}


# --- init


def test_an_output_of_parameters_alone_is_not_computed_in_init() -> None:
    softmax = into("aten._softmax.default", W, 1, False, to=PACKED)
    computed = program(launch(0, PACKED, Y), init=[softmax])
    assert rule(computed, needed_inputs=frozenset()) == Rule.INIT
    packed = program(launch(0, PACKED, Y), init=[into("aten.clone.default", W, to=PACKED)])
    assert judged(packed, needed_inputs=frozenset()) is None


def test_a_launch_of_init_is_no_evidence() -> None:
    made = program(into("aten.add.Tensor", PACKED, X, to=Y), init=[launch(0, W, PACKED)])
    assert rule(made, "hybrid") == Rule.OUTPUT


def test_init_draws_no_random_numbers_that_matter() -> None:
    made = program(launch(1, X, PACKED, Y), init=[into("aten.uniform_.default", PACKED, to=PACKED)])
    assert rule(made) == Rule.INIT


# --- state


def test_forward_writes_to_parameters_as_the_reference_does() -> None:
    made = program(RUN, launch(0, X, BIAS))
    assert rule(made) == Rule.STATE
    assert judged(made, written_parameters=frozenset({"bias"})) is None


def test_forward_writes_to_inputs_as_the_reference_does() -> None:
    made = program(into("aten.zero_.default", X, to=X), RUN)
    needless = frozenset[int]()
    assert rule(made, needed_inputs=needless) == Rule.STATE
    assert judged(made, needed_inputs=needless, written_inputs=frozenset({0})) is None


def test_a_store_to_an_input_is_left_to_the_run_if_nothing_reads_it() -> None:
    store = launch(0, W, X)
    assert judged(program(RUN, store)) is None
    assert rule(program(store, RUN)) == Rule.STATE


def test_an_input_that_is_an_output_may_be_written_to_unless_the_reference_hands_one_out() -> None:
    made = dataclasses.replace(program(RUN, launch(0, X, X)), outputs=(4, 0), returned="tuple")
    assert judged(made) is None
    assert rule(program(launch(1, X, W, X), RUN)) == Rule.STATE
    assert rule(made, free_outputs=frozenset({1})) == Rule.STATE


def test_forward_writes_to_nothing_that_init_has_filled() -> None:
    made = program(
        launch(1, X, PACKED, Y),
        launch(0, X, PACKED),
        init=[into("aten.zero_.default", PACKED, to=PACKED)],
    )
    refusal = judged(made)
    assert refusal.rule == Rule.STATE
    assert refusal.message == (
        "launch 2 of 2: kernel: writes to buffer 3, which outlasts the call; the reference does not"
    )


# --- operations and outputs


def test_an_operation_outside_the_table_is_refused_everywhere() -> None:
    for made in (
        program(into("aten.set_.default", X, to=Y), RUN),
        program(RUN, init=[into("aten.from_file.default", "/etc/passwd", to=PACKED)]),
        program(RUN, into("aten.sum.default", X, "all", to=ONE)),
    ):
        assert rule(made, "hybrid") == Rule.OPERATION


def test_free_outputs_need_no_launch() -> None:
    made = dataclasses.replace(program(RUN), outputs=(4, 0), returned="tuple")
    assert rule(made) == Rule.OUTPUT
    assert judged(made, free_outputs=frozenset({1})) is None


# --- hybrid


def test_hybrid_needs_a_launch_that_an_output_depends_on() -> None:
    alone = program(into("aten.mm.default", X, W, to=Y))
    beside = program(into("aten.mm.default", X, W, to=Y), launch(0, X, LIKE_X))
    assert rule(alone, "hybrid") == Rule.OUTPUT
    assert rule(beside, "hybrid") == Rule.OUTPUT


def test_hybrid_allows_heavy_operations_and_outputs_by_torch_beside_a_launch() -> None:
    product = into("aten.mm.default", X, W, to=LIKE_X)
    assert judged(program(product, launch(0, LIKE_X, Y)), "hybrid") is None
    made = dataclasses.replace(program(product, RUN), outputs=(8, 4), returned="tuple")
    assert judged(made, "hybrid") is None


def test_an_expanded_tensor_counts_by_its_elements() -> None:
    expanded = Tensor(storage=2, offset=0, shape=(1024, 1024), strides=(0, 1), dtype="float32")
    made = program(into("aten.sum.dim_IntList", "t9", [0], to=PARTIAL), RUN)
    made = dataclasses.replace(made, tensors=(*made.tensors, expanded))
    assert rule(made) == Rule.COMBINE


def test_a_table_of_the_host_is_no_output_that_no_input_reaches() -> None:
    made = build(
        inputs=[(4,)],
        buffers=[(512,)],
        kernels=[pointers("copy", "*fp32", "*fp32", "*fp32")],
        forward=[launch(0, "t0", "t2", "t1")],
        outputs=[1],
    )
    held = Storage(num_bytes=2048, origin=Origin.CONSTANT, index=0)
    storages = (*made.storages, held)
    made = dataclasses.replace(
        made,
        storages=storages,
        tensors=(*made.tensors, dense(len(storages) - 1, 512)),
        constants=(bytes(2048),),
    )
    facts = ProblemFacts(num_bytes=4096, fixed_outputs=frozenset({0}))
    found = judge_policy(made, facts, "own")
    assert found.rule is Rule.INIT
    assert judge_policy(made, dataclasses.replace(facts, fixed_outputs=frozenset()), "own") is None
    small = dataclasses.replace(held, num_bytes=1024)
    assert (
        judge_policy(dataclasses.replace(made, storages=(*made.storages[:-1], small)), facts, "own")
        is None
    )


def test_torch_rearranges_nothing_where_the_reference_moves_by_indices() -> None:
    kinds = frozenset({Kind.INDEX, Kind.FILL})
    flipped = into("aten.flip.default", X, [1], to=LIKE_X)
    copied = into("aten.clone.default", X, to=LIKE_X)
    assert rule(program(flipped, launch(0, LIKE_X, Y)), kinds=kinds) == Rule.MOVES
    assert rule(program(copied, launch(0, LIKE_X, Y)), kinds=kinds) is None
    assert rule(program(flipped, launch(0, LIKE_X, Y))) is None
