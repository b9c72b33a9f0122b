"""`forge data from-run`: rows for the next run, without held-out problems or duplicates."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.cli import run_command
from forge.data.pairs.conversations import read_pairs
from forge.errors import ConfigError
from forge.records import Finish, Purpose, Split, Status
from forge.runner.prepare.own_answers import AnswerFilter, write_rows
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.prompting import PROMPTS
from tests.store.storefactory import attempt, group, problem, timing, turn, write_run

EXPERIMENT = """\
name = "next"
[model]
init = "tiny"
[data]
source = "file"
path = "{path}"
format = "messages"
[[stage]]
kind = "sft"
epochs = 1
learning_rate = 1e-3
"""


def rows_of(run: Path | RunPaths, out: Path, **wanted: Any) -> list[dict[str, Any]]:
    with open_run(run) as reader:
        write_rows(reader, AnswerFilter(**wanted), out=out)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Two problems that are trained on, one held out, one with the held-out one's source."""
    heldout = replace(problem(2, family="norm"), split=Split.HELDOUT)
    twin = replace(problem(3, family="norm"), source=heldout.source)
    correct, wrong = Status.CORRECT, Status.WRONG
    records = [
        attempt(), problem(0), problem(1, family="matmul"), heldout, twin,
        group(0, [[correct], [wrong, correct], [wrong, wrong]], speed=timing(2.0)),
        group(1, [[correct], [correct]], problem_id="matmul-0001", speed=timing(0.5)),
        group(2, [[correct]], problem_id="norm-0002", purpose=Purpose.EVAL),
        group(3, [[correct]], problem_id="norm-0003"),
        group(4, [[correct]], problem_id="matmul-0001", purpose=Purpose.EVAL),
    ]  # fmt: skip
    root = tmp_path / "runs" / "toy-1"
    anyio.run(write_run, root, records)
    return root


def test_rows_of_a_quickstart_are_read_by_the_loader_of_the_next_run(canned_run, tmp_path):
    argv = ["data", "from-run", str(canned_run.root), "--out", str(tmp_path / "rows.jsonl")]
    assert run_command(argv) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    pairs = read_pairs(tmp_path / "rows.jsonl", prompts=PROMPTS)
    assert len(pairs) == len(rows) > 10
    assert [pair.problem_id for pair in pairs] == [row["id"] for row in rows]
    with open_run(canned_run) as reader:
        splits = dict(reader.query("SELECT problem_id, split FROM problems").rows)
        for pair, row in zip(pairs, rows, strict=True):
            if row["id"].endswith(".best"):
                continue
            origin = row["from"]
            assert splits[origin["problem_id"]] != "heldout"
            found = reader.one("SELECT * FROM v_turns WHERE turn_id = ?", (origin["turn_id"],))
            assert found["status"] == "correct"
            assert pair.messages[-1].content == found["completion"]
            assert pair.num_turns == found["prompt"].count("<|im_start|>assistant")
            for message in pair.messages[:-1]:
                shown = message.content.partition("</think>")[2] or message.content
                assert shown.strip() in found["prompt"], "what the model was not shown"


def test_no_row_is_about_a_heldout_problem_unless_requested(made, tmp_path):
    out = tmp_path / "rows.jsonl"
    problems = {row["from"]["problem_id"] for row in rows_of(made, out)}
    assert problems == {"softmax-0000", "matmul-0001"}, "also not by a twin's source"
    every = {row["from"]["problem_id"] for row in rows_of(made, out, includes_heldout=True)}
    assert every == {"softmax-0000", "matmul-0001", "norm-0002", "norm-0003"}


def test_a_problem_that_was_only_evaluated_is_left_out(tmp_path):
    played = group(0, [[Status.CORRECT]], purpose=Purpose.EVAL)
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(0), played])
    with pytest.raises(ConfigError, match="1 of held-out problems"):
        rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl")
    assert list(tmp_path.glob("*rows*")) == []


def test_an_answer_that_the_run_went_back_behind_is_no_row(tmp_path):
    gone = group(1, [[Status.CORRECT]], problem_id="norm-0001", purpose=Purpose.ABANDONED)
    records = [attempt(), problem(0), problem(1, family="norm"), group(0, [[Status.CORRECT]]), gone]
    anyio.run(write_run, tmp_path / "toy-1", records)
    rows = rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl", includes_heldout=True)
    assert {row["from"]["problem_id"] for row in rows} == {"softmax-0000"}


def test_a_repaired_answer_is_a_conversation_with_the_judges_feedback(made, tmp_path):
    rows = rows_of(made, tmp_path / "rows.jsonl")
    mended = next(row for row in rows if row["id"] == "toy-1/g0.r1.t1")
    roles = [message["role"] for message in mended["messages"]]
    assert roles == ["system", "user", "assistant"], "the factory's prompt shows no attempt"


THOUGHTS = "<think>The first one was wrong.</think>\n```python\nkernel\n```"


def test_turns_that_the_prompt_no_longer_had_are_not_in_the_row(tmp_path):
    first = turn(0, 0, 0, status=Status.WRONG)
    second = replace(turn(0, 0, 1, status=Status.WRONG), feedback="second words")
    prompt = "the problem\nassistant: ...\nuser: second words\nassistant:"
    third = turn(0, 0, 2, prompt=prompt, completion=THOUGHTS)
    played = replace(group(0, [[Status.WRONG, Status.WRONG, Status.CORRECT]]), trajectories=())
    records = [attempt(), problem(0), played, first, second, third]
    anyio.run(write_run, tmp_path / "toy-1", records)
    (row,) = rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl")
    assert [m["role"] for m in row["messages"]] == [
        "system", "user", "assistant", "user", "assistant"]  # fmt: skip
    assert row["messages"][2]["content"] == second.completion_text
    assert row["messages"][3]["content"] == "second words"


def searched(group_id: int, *parents: int, speed: float = 0.0, text: str = "plain") -> list[Any]:
    """A search's answer, correct if it has a speed-up; its prompt shows the parents' feedback."""
    status = Status.CORRECT if speed else Status.WRONG
    prompt = " ".join(f"words on {each}" for each in parents)
    made = turn(
        group_id, status=status, prompt=prompt, completion=text,
        speed=timing(speed) if speed else None,
    )  # fmt: skip
    of = group(group_id, [[status]], purpose=Purpose.SEARCH, stage=0)
    names = tuple(f"g{each}.r0.t0" for each in parents)
    of = replace(of, parents=names, trajectories=())
    return [of, replace(made, feedback=f"words on {group_id}")]


def test_a_search_gives_its_best_answers_and_its_improvements(tmp_path):
    answers = [
        searched(0), searched(1, 0, speed=1.0), searched(2, 0, 1, speed=2.0),
        searched(3, 0, 1, speed=1.05), searched(4, speed=0.5),
    ]  # fmt: skip
    records = [attempt(), problem(0), *(each for pair in answers for each in pair)]
    anyio.run(write_run, tmp_path / "toy-1", records)
    rows = rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl", best_per_problem=3)
    assert [row["id"] for row in rows] == [
        "toy-1/g2.r0.t0.best", "toy-1/g2.r0.t0", "toy-1/g3.r0.t0.best", "toy-1/g1.r0.t0.best",
        "toy-1/g1.r0.t0",
    ], "g3 is within the noise of its parent, and the fourth best is left out"  # fmt: skip
    best, improved, *_ = (row["messages"] for row in rows)
    assert best[-1]["content"] == "```python\n@triton.jit\ndef kernel_2_0_0(): ...\n```"
    assert [each["content"] for each in improved[-4:-1:2]] == ["words on 0", "words on 1"]
    for wanted in ({"before_stage": 0}, {"purpose": "train"}):
        with pytest.raises(ConfigError, match="no correct answer to write"):
            rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl", **wanted)


def test_an_answer_that_thinks_about_earlier_ones_is_no_first_answer(tmp_path):
    answers = [*searched(0, speed=1.0), *searched(1, 0, speed=3.0, text=THOUGHTS)]
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(0), *answers])
    rows = rows_of(tmp_path / "toy-1", tmp_path / "rows.jsonl")
    assert [row["id"] for row in rows] == ["toy-1/g1.r0.t0", "toy-1/g0.r0.t0"]
    assert rows[0]["messages"][-1]["content"] == THOUGHTS


def test_the_best_answers_of_a_problem_are_kept_and_no_kernel_twice(made, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert len(rows_of(made, out)) == 5
    best = rows_of(made, out, best_per_problem=1)
    assert len(best) == len({row["from"]["problem_id"] for row in best}) == 2
    assert {row["from"]["problem_id"] for row in rows_of(made, out, min_speedup=1.0)} == {
        "softmax-0000"
    }
    same = [turn(9, n, code="def kernel(): ...") for n in range(3)]
    again = [attempt(), problem(0), replace(group(9, [[Status.CORRECT]]), trajectories=()), *same]
    anyio.run(write_run, tmp_path / "again-1", again)
    assert len(rows_of(tmp_path / "again-1", tmp_path / "again.jsonl")) == 1


def test_the_fastest_answer_that_was_not_cut_off_is_the_best(tmp_path):
    slow, fast, cut = (turn(0, n, speed=timing(s)) for n, s in enumerate((1.5, 3.0, 9.0)))
    cut = replace(cut, completion=replace(cut.completion, finish=Finish.LENGTH))
    played = replace(group(0, [[Status.CORRECT]]), trajectories=())
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(0), played, slow, fast, cut])
    out = tmp_path / "rows.jsonl"
    (row,) = rows_of(tmp_path / "toy-1", out, best_per_problem=1)
    assert row["from"]["speedup"] == 3.0
    assert [each["from"]["turn_id"] for each in rows_of(tmp_path / "toy-1", out)] == [
        "g0.r1.t0", "g0.r0.t0"]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ({"best_per_problem": 0}, "rows.jsonl", "must be 1 or more"),
        ({}, "rows.csv", r"\*.jsonl"),
        ({"min_speedup": 99.0}, "rows.jsonl", "too slow or not timed"),
        ({}, "nowhere/rows.jsonl", "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_one_line(made, tmp_path, wanted, name, expected):
    with pytest.raises(ConfigError, match=expected) as error:
        rows_of(made, tmp_path / name, **wanted)
    assert "\n" not in str(error.value)


def test_only_rows_of_the_same_run_are_overwritten(made, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert rows_of(made, out) == rows_of(made, out)
    for kept in ('{"messages": []}\n', '{"from": {"run": "other-1"}}\n', "notes\n", "[1]\n"):
        out.write_text(kept, encoding="utf-8")
        with pytest.raises(ConfigError, match="has no rows of toy-1; name another file"):
            rows_of(made, out)
        assert out.read_text(encoding="utf-8") == kept
