"""`forge show --turn`: a turn with the program that was stored for it."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import zstandard

from forge import cli
from forge.evalpool.judge.program import wire
from forge.records import Status, Timing, Turn
from forge.records.verdict import OtherVerdict, ShapeVerdict
from forge.store.reader import open_run
from tests.evalpool.program.programs import addition
from tests.store.storefactory import turn, write_run
from tests.views.terminals import told

PROGRAM = zstandard.compress(wire.dumps(addition()))


def played(group_id: int, *, program: bytes | None, status: Status = Status.CORRECT) -> Turn:
    made = turn(group_id, status=status)
    return replace(made, verdict=replace(made.verdict, program=program))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    turns = [
        played(1, program=PROGRAM),
        played(2, program=PROGRAM),
        played(3, program=None, status=Status.REJECTED),
        played(4, program=b"of another format"),
    ]
    return anyio.run(write_run, tmp_path / "toy-1", turns)


def test_equal_programs_are_stored_once(root):
    with open_run(root) as reader:
        rows = reader.rows("SELECT turn_id, program_id, num_bytes FROM v_programs ORDER BY turn_id")
        bodies = [row[0] for row in reader.query("SELECT body FROM programs").rows]
    assert [row["turn_id"] for row in rows] == ["g1.r0.t0", "g2.r0.t0", "g4.r0.t0"]
    assert rows[0]["program_id"] == rows[1]["program_id"] != rows[2]["program_id"]
    assert rows[0]["num_bytes"] == len(PROGRAM)
    assert sorted(bodies) == sorted([PROGRAM, b"of another format"])


@pytest.mark.parametrize(
    ("turn_id", "words"),
    [
        ("g1.r0.t0", "launch "),
        ("g3.r0.t0", "no program is stored: the answer failed"),
        ("g4.r0.t0", "this version of forge cannot read the program"),
    ],
)
def test_a_turn_is_shown_with_its_program_or_the_reason_for_none(root, turn_id, words, capsys):
    printed = told(capsys, "show", root, "--turn", turn_id)
    assert words in printed
    assert printed.startswith(f"{turn_id}  ")
    assert "@triton.jit" in printed


@pytest.mark.parametrize(
    ("turn_id", "words"),
    [("g9.r0.t0", "toy-1 has no such turn"), ("g1", "not the id of a turn; write g12.r3.t1")],
)
def test_a_turn_that_is_none_is_an_error(root, turn_id, words, capsys):
    assert words in told(capsys, "show", root, "--turn", turn_id, code=2)


def test_verdicts_of_other_protocols_are_stored_beside_the_one_that_counts(tmp_path, capsys):
    other = OtherVerdict(status=Status.CORRECT, reason="ok", detail="")
    made = played(1, program=None, status=Status.WRONG)
    judged = replace(made, verdict=replace(made.verdict, also={"kernelbench": other}))
    root = anyio.run(write_run, tmp_path / "toy-1", [judged])
    anyio.run(write_run, root, [judged])
    with open_run(root) as reader:
        (row,) = reader.rows("SELECT * FROM v_protocols")
    assert (row["turn_id"], row["protocol"]) == ("g1.r0.t0", "kernelbench")
    assert (row["status"], row["own_status"], row["is_agreed"]) == ("correct", "wrong", 0)
    assert row["own_detail"].startswith("first mismatch")
    assert "kernelbench: correct (ok)\n" in told(capsys, "show", root, "--turn", "g1.r0.t0")


def test_results_by_shape_are_stored_once_and_shown_with_the_turn(tmp_path, capsys):
    timing = Timing(
        speedup=2.5, speedup_low=2.0, candidate_us=4.0, baseline_us=10.0, candidate_spread_us=0.1,
        baseline_spread_us=0.2,
    )  # fmt: skip
    shapes = (
        ShapeVerdict(name="N=8, M=3", status=Status.CORRECT, timing=timing),
        ShapeVerdict(name="N=9", status=Status.WRONG),
    )
    made = played(1, program=None, status=Status.WRONG)
    judged = replace(made, verdict=replace(made.verdict, shapes=shapes))
    root = anyio.run(write_run, tmp_path / "toy-1", [judged])
    anyio.run(write_run, root, [judged])
    with open_run(root) as reader:
        first, second = reader.rows("SELECT * FROM v_shapes ORDER BY shape")
    assert (first["turn_id"], first["shape"], first["name"]) == ("g1.r0.t0", 0, "N=8, M=3")
    assert (first["status"], first["speedup"], first["baseline_us"]) == ("correct", 2.5, 10.0)
    assert (second["status"], second["speedup"], second["candidate_us"]) == ("wrong", None, None)
    assert cli.run_command(["show", str(root), "--turn", "g1.r0.t0"]) == 0
    assert "N=8, M=3: correct, speed-up 2.50\nN=9: wrong\n" in capsys.readouterr().out
