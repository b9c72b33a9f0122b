"""Queries of the Problems, Rollout and Kernels screens: on the canned run and on small ones."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.errors import ConfigError
from forge.records import Event, Purpose, Status
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.problems import (
    ORDERS,
    TREND_GROUPS,
    ProblemFilter,
    file_name,
    load_history,
    load_kernel,
    load_kernels,
    load_problems,
    write_kernel,
)
from forge.views.rollouts import (
    MAX_DIFF_LINES,
    AnswerPart,
    diff_codes,
    load_conversation,
    split_answer,
)
from tests.store.storefactory import (
    attempt,
    group,
    problem,
    resumed_run,
    samples,
    timing,
    turn,
    use,
    write_run,
)

CORRECT, WRONG = Status.CORRECT, Status.WRONG


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """Twenty-four groups of one problem, solved from the middle on; one timed; one group of another
    problem."""
    groups = [
        group(n, [[WRONG, CORRECT if n >= 12 else WRONG], [WRONG]], step=n, version=n)
        for n in range(24)
    ]
    fast = group(24, [[CORRECT]], problem_id="matmul-0001", step=24, speed=timing(2.0))
    offered = samples(groups[20], first_id=7)
    records = [
        attempt(), problem(0), problem(1, family="matmul", level=2), *groups, fast, *offered,
        *(use(sample, step=21, staleness=1) for sample in offered),
    ]  # fmt: skip
    anyio.run(write_run, tmp_path / "toy-1", records)
    return tmp_path / "toy-1"


def problems(run: Path | RunPaths, **wanted: Any) -> list[dict[str, Any]]:
    with open_run(run) as reader:
        return load_problems(reader, ProblemFilter(**wanted))


def test_a_problem_has_its_totals_and_its_trend(played: Path) -> None:
    found = problems(played, order="attempts")
    softmax, other = found
    assert softmax["num_found"] == 2
    assert (softmax["problem_id"], softmax["num_rollouts"]) == ("softmax-0000", 48)
    assert softmax["correct_share"] == pytest.approx(12 / 72)
    assert len(softmax["trend"]) == TREND_GROUPS
    assert (softmax["trend"][0], softmax["trend"][-1]) == (0.0, 0.5)
    assert list(softmax["trend"]) == sorted(softmax["trend"])
    assert other["trend"] == (1.0,)


@pytest.mark.parametrize("order", ORDERS)
def test_a_reversed_order_starts_at_the_other_end(canned_run: RunPaths, order: str) -> None:
    column = {
        "name": "problem_id", "pass": "correct_share", "speedup": "best_speedup",
        "attempts": "num_rollouts", "reward": "best_reward", "level": "level",
        "recent": "last_played_by_version",
    }[order]  # fmt: skip
    there = [row[column] for row in problems(canned_run, order=order)]
    back = [row[column] for row in problems(canned_run, order=order, is_reversed=True)]
    known = [value for value in there if value is not None]
    assert known == sorted(known, reverse=order != "name")
    assert [value for value in back if value is not None] == known[::-1]


def test_problems_are_found_by_words_glob_purpose_and_success(canned_run: RunPaths) -> None:
    assert len(problems(canned_run)) == 76
    assert {row["family"] for row in problems(canned_run, words="SoftMax")} == {"softmax"}
    assert problems(canned_run, words="oftmax*") == []
    assert {row["family"] for row in problems(canned_run, words="norm-*")} == {"norm"}
    assert problems(canned_run, words="[") == []
    assert len(problems(canned_run, words=" ")) == 76
    assert {row["purpose"] for row in problems(canned_run, purpose="eval")} == {"eval"}
    solved = problems(canned_run, is_solved=True)
    unsolved = problems(canned_run, is_solved=False)
    assert len(solved) + len(unsolved) == 76
    assert all(row["first_solved_by_version"] is None for row in unsolved)
    few = problems(canned_run, limit=5)
    assert (len(few), few[0]["num_found"]) == (5, 76)
    with pytest.raises(ConfigError, match="order x"):
        problems(canned_run, order="x")


def test_a_history_has_every_attempt_latest_first(played: Path) -> None:
    with open_run(played) as reader:
        history = load_history(reader, "softmax-0000")
        nothing = load_history(reader, "nope")
    assert history.num_attempts == len(history.attempts) == 48
    latest = history.attempts[0]
    assert (latest["rollout_id"], latest["statuses"], latest["ended"]) == (
        "g23.r0", "wrong correct", "correct",
    )  # fmt: skip
    assert latest["is_correct"]
    assert (latest["reward"], latest["num_completion_tokens"]) == (0.8, 24)
    groups = [row["group_id"] for row in history.attempts]
    assert groups == sorted(groups, reverse=True)
    assert history.source is not None
    assert "class Model" in history.source
    assert (nothing.totals, nothing.attempts, nothing.source) == ([], [], None)


def test_a_conversation_has_turns_siblings_and_neighbours(played: Path) -> None:
    with open_run(played) as reader:
        found = load_conversation(reader, 20, 0)
        latest = load_conversation(reader)
        beyond = load_conversation(reader, 20, 99)
        assert load_conversation(reader, 999) is None
    assert [turn["turn_id"] for turn in found.turns] == ["g20.r0.t0", "g20.r0.t1"]
    assert (found.before, found.after) == (19, 21)
    assert [turn["advantage"] for turn in found.turns] == [0.5, -0.5]
    assert found.turns[0]["trained_at"] == (("grpo-1", 21, 1),)
    assert found.turns[1]["reward_terms"] == {"compiled": 0.3, "correct": 0.5}
    assert found.turns[0]["phase_s"]["correct"] == 0.05
    assert found.turns[0]["queued_s"] == pytest.approx(0.1 - 0.051)
    assert found.group["stage_name"] == "grpo-1"
    assert [s.rollout for s in found.siblings] == [0, 1]
    assert [s["advantage"] for s in found.siblings[0].turns] == [0.5, -0.5]
    assert found.siblings[1].turn(1)["turn"] == 0
    assert (latest.group_id, latest.after) == (24, None)
    assert latest.turns[0]["speedup"] == 2.0
    assert beyond.rollout == 1


def test_the_best_kernel_has_its_code_times_and_origin(played: Path) -> None:
    with open_run(played) as reader:
        best = load_kernels(reader)[0]
        kernel = load_kernel(reader, best["turn_id"])
        assert load_kernel(reader, "g0.r0.t0") is not None
        assert load_kernel(reader, "g0.r0.t9") is None
        assert load_kernel(reader, "g0.r0.t0; drop") is None
        assert [row["problem_id"] for row in load_kernels(reader, words="SOFT")] == ["softmax-0000"]
        assert load_kernels(reader, limit=1)[0]["num_found"] == 2
    assert (best["problem_id"], best["step"], best["speedup"]) == ("matmul-0001", 24, 2.0)
    assert kernel.run == "toy-1"
    assert kernel.turn["candidate_us"] == 50.0
    assert kernel.code.startswith("@triton.jit")
    assert [time["candidate_us"] for time in kernel.times] == [50.0]


@pytest.mark.parametrize(
    "name", [".", "no/such/folder/k.py", "x" * 300, "a\0b", "~nobody-here/k.py"]
)
def test_an_unwritable_path_is_a_one_line_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        write_kernel("code", Path(name) if name[0] == "~" else tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_file_name_is_never_a_path() -> None:
    assert file_name("softmax-0000") == "softmax-0000.py"
    assert file_name("../../etc/passwd") == "_.._etc_passwd.py"
    assert file_name("...") == "kernel.py"
    assert len(file_name("x" * 999)) < 110


def test_an_answer_is_split_into_thinking_text_and_code() -> None:
    answer = "<think>\na\n```python\nno\n```\n</think>\nHere:\n```python\nx = 1\n~~~\n```\nend"
    assert split_answer(answer) == [
        (AnswerPart.THINKING, "<think>\na\n```python\nno\n```\n</think>\n"),
        (AnswerPart.TEXT, "Here:\n```python\n"),
        (AnswerPart.CODE, "x = 1\n~~~\n"),
        (AnswerPart.TEXT, "```\nend"),
    ]


def test_an_answer_is_split_by_the_tag_of_its_prompts() -> None:
    answer = "<plan>\na\n</plan>\n<think>b</think>\n"
    plan = [(AnswerPart.THINKING, "<plan>\na\n</plan>\n"), (AnswerPart.TEXT, "<think>b</think>\n")]
    assert split_answer(answer, thinking="plan") == plan
    assert split_answer(answer, thinking="") == [(AnswerPart.TEXT, answer)]


def test_a_conversation_has_the_tag_of_its_attempt(tmp_path: Path) -> None:
    def prompts(tag: str) -> Event:
        return Event(at=1.0, kind="prompts", message="", data={"thinking": tag})

    records = [attempt(), prompts("plan"), problem(), turn(3, 0, 0, status=WRONG)]
    anyio.run(write_run, tmp_path / "toy-1", records)
    anyio.run(write_run, tmp_path / "toy-1", [attempt(2), prompts("x"), turn(4, 0, 0)])
    with open_run(tmp_path / "toy-1") as reader:
        tags = [found.thinking for n in (3, 4) if (found := load_conversation(reader, n))]
    assert tags == ["plan", "x"]


@given(st.text(alphabet="`~<>/thinkpy\n \r\u2028x", max_size=200))
def test_a_split_answer_joins_to_itself(text: str) -> None:
    assert "".join(part for _, part in split_answer(text)) == text


def test_a_diff_is_signed_lines_and_bounded() -> None:
    assert diff_codes("a\nb\n", "a\nb\n") == []
    assert diff_codes("a\nb\n", "a\nc\n") == ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    long = "\n".join(f"line {i}" for i in range(MAX_DIFF_LINES + 5))
    assert diff_codes(long, long)[-1].startswith("@ only the first")


def test_purposes_are_separate_rows(tmp_path: Path) -> None:
    records = [
        attempt(), problem(), group(0, [[CORRECT]], purpose=Purpose.EVAL, step=0),
        group(1, [[WRONG]]),
    ]  # fmt: skip
    anyio.run(write_run, tmp_path / "toy-1", records)
    rows = problems(tmp_path / "toy-1")
    assert [(row["purpose"], row["trend"]) for row in rows] == [("eval", (1.0,)), ("train", (0.0,))]


def test_a_repeated_evaluation_counts_once(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", resumed_run())
    with open_run(tmp_path / "toy-1") as reader:
        replayed = {row["group_id"] for row in reader.rows("SELECT group_id FROM v_replayed")}
        history = load_history(reader, "softmax-0000")
    assert replayed == {20}
    assert {21} <= {row["group_id"] for row in history.attempts}
    assert not replayed & {row["group_id"] for row in history.attempts}
    assert len(history.attempts) == history.num_attempts
    trends = {row["purpose"]: row["trend"] for row in history.totals}
    assert trends["eval"] == (1.0, 0.5)
