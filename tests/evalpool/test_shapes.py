"""Results by shape, folded: the first failure decides, else geometric means."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.shapes import fold_examinations, fold_verdicts, mean_timing
from forge.records.examination import Examination, Flag
from forge.records.reason import Status
from forge.records.verdict import OtherVerdict, ShapeVerdict, Timing, Verdict

NAMES = ("N=1", "N=2", "N=3")
CORRECT = Verdict(status=Status.CORRECT, reason="ok", detail="", phase_s={"correct": 1.0})
WRONG = Verdict(
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
    folded = fold_verdicts(NAMES, [CORRECT, WRONG])
    assert (folded.status, folded.reason) == (Status.WRONG, "mismatch")
    assert folded.detail == "shape 2 of 3 (N=2): line 3: y = x\n1 is not 2"
    assert [(each.name, each.status) for each in folded.shapes] == [
        ("N=1", Status.CORRECT), ("N=2", Status.WRONG),
    ]  # fmt: skip
    assert folded.phase_s == {"correct": 3.0, "capture": 1.0}


@given(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=16))
def test_a_speed_up_is_the_geometric_mean_of_all_shapes(speedups: list[float]) -> None:
    verdicts = [
        replace(CORRECT, timing=timed(each, candidate_us=1.0 + number))
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
    failed = fold_verdicts(NAMES, [replace(CORRECT, also=ok), replace(WRONG, also=ok)])
    assert failed.also["kernelbench"].detail == "on 2 of 3 shapes; the others were not judged"
    passed = fold_verdicts(NAMES[:2], [replace(CORRECT, also=bad), replace(CORRECT, also=ok)])
    assert passed.is_correct
    assert passed.also["kernelbench"].status is Status.WRONG
    assert passed.also["kernelbench"].detail == "shape 1 of 2 (N=1): 1"


def test_a_verdict_with_shapes_travels_as_json_and_one_without_has_no_such_key() -> None:
    folded = fold_verdicts(NAMES[:2], [replace(CORRECT, timing=timed(2.0)), CORRECT])
    assert Verdict.from_json(json.loads(json.dumps(folded.to_json()))) == folded
    assert "shapes" not in CORRECT.to_json()
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
