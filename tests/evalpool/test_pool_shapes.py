"""Problems with several shapes: how they are listed (at most 16), each is a request, and their
results folded: the first failure decides, else geometric means."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.pool import (
    ShapeLister,
    ShapesUnknown,
    fold_examinations,
    fold_verdicts,
    mean_timing,
)
from forge.records.examination import Examination, Flag
from forge.records.problem import ReferenceModule, Shape, has_input_sets, select_input_set
from forge.records.verdict import OtherVerdict, ShapeVerdict, Status, Timing, Verdict
from tests.evalpool.scripted_judges import CORRECT, TIMES, WRONG, Script, kept

SETS = "def get_input_sets():\n    return []\n"
SIZED = ReferenceModule(
    problem_id="p",
    source="N = 1",
    shapes=tuple(Shape(name=f"N={size}", source=f"N = {size}") for size in (1, 2, 3)),
)
LISTED = ReferenceModule(problem_id="p", source=SETS)


class Sized(Script):
    """A judge whose verdicts and flags depend on the problem's source."""

    def __init__(
        self,
        verdicts: Mapping[str, Verdict] | None = None,
        *,
        flags: Mapping[str, dict[Flag, str]] | None = None,
        sets: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.verdicts, self.flags, self.sets = verdicts or {}, flags or {}, sets
        self.judged: list[str] = []
        self.examined: list[tuple[str, bool]] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        body: dict[str, Any] = json.loads(request.content)
        source = body["problem"]["source"]
        if request.url.path == "/examine":
            self.examined.append((source, body["lists_sets"]))
            names = self.sets if body["lists_sets"] else ()
            flags = self.flags.get(source, {})
            found = Examination(problem_id="p", flags=flags, shapes=names)
            return httpx.Response(200, json=found.to_json())
        self.judged.append(source)
        return httpx.Response(200, json=self.verdicts.get(source, CORRECT).to_json())


async def test_a_candidate_is_judged_at_every_shape_and_its_speed_up_is_their_mean() -> None:
    fast = replace(CORRECT, timing=replace(TIMES, speedup=8.0, baseline_us=8.0))
    slow = replace(CORRECT, timing=replace(TIMES, speedup=1.0, baseline_us=1.0))
    judge = Sized({"N = 1": fast, "N = 2": slow, "N = 3": slow})
    async with kept(judge) as pool:
        verdict = await pool.judge(SIZED, "code")
    assert judge.judged == ["N = 1", "N = 2", "N = 3"]
    assert verdict.is_correct
    assert verdict.timing.speedup == pytest.approx(2.0)
    assert [each.name for each in verdict.shapes] == ["N=1", "N=2", "N=3"]


async def test_a_candidate_that_is_right_at_one_shape_alone_is_wrong() -> None:
    judge = Sized({"N = 2": replace(WRONG, detail="1 is not 2")})
    async with kept(judge) as pool:
        verdict = await pool.judge(SIZED, "code")
    assert judge.judged == ["N = 1", "N = 2"]
    assert verdict.status is Status.WRONG
    assert verdict.detail == "shape 2 of 3 (N=2): 1 is not 2"


async def test_input_sets_are_listed_once_and_each_is_judged() -> None:
    sources = [select_input_set(SETS, number) for number in (0, 1)]
    judge = Sized({sources[1]: WRONG}, sets=("n=1", "n=2"))
    async with kept(judge) as pool:
        verdicts = [await pool.judge(LISTED, code) for code in ("a", "b")]
    assert judge.examined == [(SETS, True)]
    assert judge.judged == [*sources, *sources]
    assert {each.detail for each in verdicts} == {"shape 2 of 2 (n=2): "}


async def test_sets_that_cannot_be_listed_blame_no_candidate() -> None:
    judge = Sized(flags={SETS: {Flag.DOES_NOT_RUN: "line 2: NameError: x"}})
    async with kept(judge) as pool:
        verdict = await pool.judge(LISTED, "code")
    assert (verdict.status, verdict.reason) == (Status.UNJUDGEABLE, "reference_failed")
    assert verdict.detail == "get_input_sets() of p: line 2: NameError: x"
    assert judge.judged == []


async def test_every_shape_of_a_problem_is_examined_up_to_one_that_cannot_be_judged() -> None:
    judge = Sized(flags={"N = 1": {Flag.IDENTITY: "i"}, "N = 2": {Flag.DOES_NOT_RUN: "no"}})
    async with kept(judge) as pool:
        found = await pool.examine(SIZED)
    assert [source for source, _ in judge.examined] == ["N = 1", "N = 2"]
    assert found.flags == {
        Flag.IDENTITY: "shape 1 of 3 (N=1): i", Flag.DOES_NOT_RUN: "shape 2 of 3 (N=2): no",
    }  # fmt: skip
    assert not found.is_usable


PLAIN = ReferenceModule(problem_id="p", source="N = 1\n")


class Asked:
    """A judge that lists `names`, or finds `flags`."""

    def __init__(self, *names: str, flags: dict[Flag, str] | None = None) -> None:
        self.names, self.flags = names, flags or {}
        self.sources: list[str] = []

    async def __call__(self, problem: ReferenceModule) -> Examination:
        self.sources.append(problem.source)
        return Examination(problem_id=problem.problem_id, flags=self.flags, shapes=self.names)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SETS, True),
        ("get_input_sets = make\n", True),
        ("from sizes import make as get_input_sets\n", True),
        (select_input_set(SETS, 1), False),
        ("# get_input_sets\nN = 1\n", False),
        ("def f():\n    def get_input_sets(): pass\n", False),
        ("def get_input_sets(:\n", False),
        ("", False),
    ],
)
def test_only_a_module_level_name_without_a_selected_set_counts(
    source: str, expected: bool
) -> None:
    assert has_input_sets(source) is expected


async def test_constants_and_sets_multiply() -> None:
    shapes = (Shape(name="N=1", source=SETS), Shape(name="N=2", source=f"N = 2\n{SETS}"))
    found = await ShapeLister(Asked("a", "b")).list_shapes(
        replace(replace(PLAIN, source=SETS), shapes=shapes)
    )
    assert [shape.name for shape in found] == ["N=1: a", "N=1: b", "N=2: a", "N=2: b"]


async def test_more_than_16_shapes_are_refused() -> None:
    names = [str(number) for number in range(9)]
    shapes = (Shape(name="N=1", source=SETS), Shape(name="N=2", source=f"N = 2\n{SETS}"))
    with pytest.raises(ShapesUnknown, match="18 shapes; at most 16"):
        await ShapeLister(Asked(*names)).list_shapes(
            replace(replace(PLAIN, source=SETS), shapes=shapes)
        )


@pytest.mark.parametrize(("flag", "num_asked"), [(Flag.UNSUPPORTED, 1), (Flag.CRASH, 2)])
async def test_a_failure_names_the_function_and_only_a_lasting_one_is_remembered(
    flag: Flag, num_asked: int
) -> None:
    ask = Asked(flags={flag: "it says so"})
    lister = ShapeLister(ask)
    for _ in range(2):
        with pytest.raises(ShapesUnknown, match=r"get_input_sets\(\) of p: it says so") as error:
            await lister.list_shapes(replace(PLAIN, source=SETS))
        assert error.value.flags == {flag: "it says so"}
    assert len(ask.sources) == num_asked


async def test_a_judge_that_lists_no_set_does_not_make_a_candidate_pass() -> None:
    with pytest.raises(ShapesUnknown, match="no set was listed"):
        await ShapeLister(Asked()).list_shapes(replace(PLAIN, source=SETS))


NAMES = ("N=1", "N=2", "N=3")
RIGHT = Verdict(status=Status.CORRECT, reason="ok", detail="", phase_s={"correct": 1.0})
MISMATCH = Verdict(
    status=Status.WRONG, reason="mismatch", detail="line 3: y = x\n1 is not 2",
    phase_s={"correct": 2.0, "capture": 1.0},
)  # fmt: skip


def timed(speedup: float, *, candidate_us: float = 10.0, gbps: float | None = 100.0) -> Timing:
    return Timing(
        speedup=speedup, speedup_low=0.9 * speedup, candidate_us=candidate_us,
        baseline_us=speedup * candidate_us, candidate_spread_us=0.1 * candidate_us,
        baseline_spread_us=0.0, achieved_gbps=gbps,
    )  # fmt: skip


def test_the_first_failure_decides_and_its_message_names_the_shape() -> None:
    folded = fold_verdicts(NAMES, [RIGHT, MISMATCH])
    assert (folded.status, folded.reason) == (Status.WRONG, "mismatch")
    assert folded.detail == "shape 2 of 3 (N=2): line 3: y = x\n1 is not 2"
    assert [(each.name, each.status) for each in folded.shapes] == [
        ("N=1", Status.CORRECT), ("N=2", Status.WRONG),
    ]  # fmt: skip
    assert folded.phase_s == {"correct": 3.0, "capture": 1.0}


@given(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=16))
def test_a_speed_up_is_the_geometric_mean_of_all_shapes(speedups: list[float]) -> None:
    verdicts = [
        replace(RIGHT, timing=timed(each, candidate_us=1.0 + number))
        for number, each in enumerate(speedups)
    ]
    names = [f"N={number}" for number in range(len(verdicts))]
    timing = fold_verdicts(names, verdicts).timing
    expected = math.prod(each ** (1 / len(speedups)) for each in speedups)
    assert timing.speedup == pytest.approx(expected)
    assert timing.speedup == pytest.approx(timing.baseline_us / timing.candidate_us)
    assert timing.speedup_low == pytest.approx(0.9 * expected)
    assert min(speedups) * 0.999 <= timing.speedup <= max(speedups) * 1.001
    backwards = fold_verdicts(names, verdicts[::-1]).timing
    assert backwards.speedup == pytest.approx(timing.speedup)


def test_spreads_are_relative_to_their_times_and_a_missing_rate_stays_missing() -> None:
    mean = mean_timing([timed(2.0, candidate_us=1.0), timed(2.0, candidate_us=100.0, gbps=None)])
    assert mean.candidate_us == pytest.approx(10.0)
    assert mean.candidate_spread_us == pytest.approx(1.0)
    assert mean.baseline_spread_us == 0.0
    assert mean.achieved_gbps is None


def test_another_protocol_that_saw_fewer_shapes_names_their_number() -> None:
    ok = {"kernelbench": OtherVerdict(status=Status.CORRECT, reason="ok", detail="")}
    bad = {"kernelbench": OtherVerdict(status=Status.WRONG, reason="mismatch", detail="1")}
    failed = fold_verdicts(NAMES, [replace(RIGHT, also=ok), replace(MISMATCH, also=ok)])
    assert failed.also["kernelbench"].detail == "on 2 of 3 shapes; the others were not judged"
    passed = fold_verdicts(NAMES[:2], [replace(RIGHT, also=bad), replace(RIGHT, also=ok)])
    assert passed.is_correct
    assert passed.also["kernelbench"].status is Status.WRONG
    assert passed.also["kernelbench"].detail == "shape 1 of 2 (N=1): 1"


def test_a_verdict_with_shapes_travels_as_json_and_one_without_has_no_such_key() -> None:
    folded = fold_verdicts(NAMES[:2], [replace(RIGHT, timing=timed(2.0)), RIGHT])
    assert Verdict.from_json(json.loads(json.dumps(folded.to_json()))) == folded
    assert "shapes" not in RIGHT.to_json()
    with pytest.raises((KeyError, TypeError, ValueError)):
        ShapeVerdict.from_json({"name": "N=1", "status": "splendid", "speedup": None})


def test_an_examination_has_every_flag_with_the_first_shape_that_has_it() -> None:
    first = Examination(problem_id="p", flags={}, outputs=("a",), forward_s=1.0)
    second = replace(first, flags={Flag.CONSTANT: "one"}, forward_s=3.0)
    third = replace(second, flags={Flag.CONSTANT: "two", Flag.SLOW: "3 s"}, outputs=("b",))
    found = fold_examinations("p", NAMES, [first, second, third])
    assert found.flags == {
        Flag.CONSTANT: "shape 2 of 3 (N=2): one", Flag.SLOW: "shape 3 of 3 (N=3): 3 s",
    }  # fmt: skip
    assert (found.outputs, found.forward_s) == (("a",), 3.0)
    assert found.shapes == NAMES
    assert Examination.from_json(json.loads(json.dumps(found.to_json()))) == found
