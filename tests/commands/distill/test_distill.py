"""`forge data distill`: attempts, turns, rows, and the same command again after any end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.commands.distill_journal import ACCEPTED, ANSWERS, REJECTED
from forge.config.schema import DataTable
from forge.data.pairs.files import read_pairs
from forge.errors import ChildDied, ConfigError, MachineError
from tests.commands.distill.teaching import (
    FakeTeacher,
    WordJudge,
    distilled,
    failure,
    kernel,
    reply,
    request_of,
    write_problems,
)
from tests.prompting import PROMPTS

if TYPE_CHECKING:
    from forge.records import Pair

pytestmark = pytest.mark.anyio


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def rows(out: Path, name: str) -> dict[str, dict[str, Any]]:
    path = out / name
    lines = path.read_text().splitlines() if path.exists() else []
    found = {row["sample_key"]: row for row in map(json.loads, lines)}
    assert len(found) == len(lines), "a row twice"
    return found


def pairs(out: Path) -> list[Pair]:
    return read_pairs(
        DataTable(source="file", path=out / ACCEPTED, format="messages"), prompts=PROMPTS
    )


def by_turn(*contents: str) -> Any:
    return lambda turn: reply(contents[turn])


async def test_traces_are_judged_turn_by_turn_and_kept_apart(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "direct", "repaired", "never", "thoughtful")
    teacher.scripts = {
        "repaired": by_turn(kernel("bad"), kernel("good")),
        "never": lambda _turn: reply(kernel("bad")),
        "thoughtful": lambda _turn: reply(kernel("good"), reasoning_content=" one a row "),
    }
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    assert found.failure is None
    assert {each.problem_id: each.result for each in found.results} == {
        "direct": "accepted", "never": "rejected", "repaired": "accepted", "thoughtful": "accepted",
    }  # fmt: skip
    accepted, rejected = rows(out, ACCEPTED), rows(out, REJECTED)
    assert set(accepted) == {"direct#0", "repaired#0", "thoughtful#0"}
    assert set(rejected) == {"never#0"}
    row = accepted["repaired#0"]
    assert row["source"] == "bench"
    assert row["teacher"] == "kimi"
    assert row["endpoint"] == teacher.url
    assert (row["status"], row["stop_reason"], row["num_turns"]) == ("correct", "correct", 2)
    assert [turn["status"] for turn in row["turns"]] == ["wrong", "correct"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (200, 20)
    assert row["final_result"]["fast_0"] is True
    assert row["final_result"]["fast_1"] is None, "nothing was measured"
    assert row["messages"] == row["full_messages"]
    assert "mark = 'good'" in row["final_triton_code"]
    lost = rejected["never#0"]
    assert (lost["stop_reason"], lost["num_turns"], lost["accepted"]) == ("max_turns", 3, False)
    assert "messages" not in lost, "a directory as data.path must not train on it"

    read = {pair.problem_id: pair for pair in pairs(out)}
    assert set(read) == set(accepted)
    repaired = read["repaired#0"]
    roles = [message.role for message in repaired.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert "\njudge> wrong: said\n" in repaired.messages[3].content
    assert (repaired.num_turns, read["direct#0"].num_turns) == (2, 1)
    answer = read["thoughtful#0"].messages[-1].content
    assert answer == f"<think>\none a row\n</think>\n\n{kernel('good')}"
    assert accepted["thoughtful#0"]["thinking"]
    assert not row["thinking"]


async def test_a_folder_is_asked_about_with_the_prompts_of_a_preset(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "direct")
    for preset in (None, "tiny"):
        async with teacher.running():
            await distilled(request_of(teacher, folder, tmp_path / f"{preset}", preset=preset))
    first, second = (body["messages"][0]["content"] for body in teacher.bodies)
    assert first.startswith("You write GPU kernels in Triton"), "standard is the default"
    assert second == "Write ModelNew with Triton."


async def test_the_sums_and_the_cost_of_each_problem_are_reported(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "direct", "never")
    teacher.scripts["never"] = lambda _turn: reply(kernel("bad"))
    said: list[str] = []
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out), said=said)
    direct, never = found.results
    assert (direct.prompt_tokens, direct.completion_tokens) == (100, 10)
    assert direct.cost == pytest.approx(0.0002)
    assert never.cost == pytest.approx(0.0006)
    told = found.describe()
    assert "1 of 2 problems accepted; 400 prompt and 40 completion tokens; $0.0008" in told
    assert "1 accepted kernels are correct, and not timed" in told
    assert f'path = "{out / ACCEPTED}"' in told
    assert found.to_json()["cost"] == pytest.approx(0.0008)
    assert any("no GPU" in line and "first correct" in line for line in said)

    teacher.scripts["direct"] = lambda _turn: reply(kernel("good"), usage=None)
    async with teacher.running():
        other = await distilled(request_of(teacher, folder, tmp_path / "other"))
    assert other.results[0].prompt_tokens is None
    assert "?" in other.describe()


async def test_earlier_thinking_is_not_sent_back(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "x")
    teacher.scripts["x"] = lambda turn: [
        reply(kernel("bad"), reasoning="hidden"),
        reply(f"secret</think>{kernel('bad')}"),
        reply(kernel("good")),
    ][turn]
    async with teacher.running():
        await distilled(request_of(teacher, folder, out))
    third = teacher.bodies[2]["messages"]
    assert [third[2]["content"], third[4]["content"]] == [kernel("bad")] * 2
    row = rows(out, ACCEPTED)["x#0"]
    assert [turn["reasoning"] for turn in row["turns"]] == ["hidden", "secret", ""]
    assert "temperature" not in teacher.bodies[0], "the server's own default"
    assert "seed" not in teacher.bodies[0]


async def test_an_answer_that_was_cut_off_is_a_turn_and_no_row_to_train_on(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "cut", "endless")
    teacher.scripts["cut"] = lambda _turn: reply(kernel("good"), finish="length")
    teacher.scripts["endless"] = lambda turn: (
        reply(kernel("good")) if turn else reply(None, reasoning="and", finish="length")
    )
    async with teacher.running():
        await distilled(request_of(teacher, folder, out))
    assert rows(out, REJECTED)["cut#0"]["finish"] == "length"
    turns = rows(out, ACCEPTED)["endless#0"]["turns"]
    assert turns[0]["reason"] == "unclosed_thinking"
    assert teacher.bodies[-1]["messages"][2]["content"] == "(no answer)"


async def test_a_timed_kernel_must_reach_the_minimum_speedup(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "faster", "slow")
    teacher.scripts["faster"] = by_turn(kernel("slow"), kernel("good"))
    teacher.scripts["slow"] = lambda _turn: reply(kernel("slow"))
    async with teacher.running():
        found = await distilled(
            request_of(teacher, folder, out), judge=WordJudge(is_timed=True)
        )  # fmt: skip
    row, slow = rows(out, ACCEPTED)["faster#0"], rows(out, REJECTED)["slow#0"]
    assert (row["num_turns"], row["speedup"], row["final_result"]["fast_1"]) == (2, 1.5, True)
    assert (slow["status"], slow["num_turns"], slow["speedup"]) == ("correct", 3, 0.5)
    assert "not timed" not in found.describe()


async def test_a_problem_gets_attempts_until_one_is_accepted(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "third", "odd", "direct")
    third = iter(["bad", "bad", "good"])
    teacher.scripts["third"] = lambda _turn: reply(kernel(next(third)))
    teacher.scripts["odd"] = lambda _turn: reply(kernel("odd"))
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out, attempts=5, turns=1))
        assert teacher.asked == {("third", 0): 3, ("odd", 0): 1, ("direct", 0): 1}
        assert set(rows(out, REJECTED)) == {"third#0", "third#1", "odd#0"}
        results = {each.problem_id: each.result for each in found.results}
        assert results == {"direct": "accepted", "odd": "unjudgeable", "third": "accepted"}
        again = await distilled(request_of(teacher, folder, out, attempts=5, turns=1))
    assert again.results == found.results
    assert teacher.asked.total() == 5, "nothing is left to ask"


async def test_busy_failing_and_silent_servers_are_asked_again(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "x")
    failures = [failure(429, **{"Retry-After": "0"}), failure(503), failure(500), failure(502)]
    answers = iter([*failures, reply(kernel("good"))])
    teacher.scripts["x"] = lambda _turn: next(answers)
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    assert found.failure is None
    assert teacher.asked["x", 0] == 5


async def test_a_refused_turn_ends_the_attempt_and_the_others_go_on(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "a-long", "b-never", "c-direct")
    long = failure(400, "context length exceeded")
    teacher.scripts["a-long"] = lambda turn: long if turn else reply(kernel("bad"))
    teacher.scripts["b-never"] = lambda _turn: long
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    row = rows(out, REJECTED)["a-long#0"]
    assert (row["stop_reason"], row["num_turns"]) == ("refused", 1)
    assert set(rows(out, ACCEPTED)) == {"c-direct#0"}
    assert isinstance(found.failure, ConfigError)
    assert "context length exceeded; 1 of 3 problems are not done (b-never)" in str(found.failure)


async def test_a_server_that_refuses_everything_gets_three_requests(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", *"abcdefg")
    teacher.scripts = dict.fromkeys("abcdefg", lambda _turn: failure(400, "max_tokens too large"))
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    assert teacher.asked.total() == 3
    assert "7 of 7 problems are not done" in str(found.failure)


async def test_a_server_that_dies_midway_is_one_line_and_the_same_command_continues(
    teacher: FakeTeacher, tmp_path: Path, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_problems(tmp_path / "bench", "a", "b", "c", "d")
    request, ends = request_of(teacher, folder, out), []
    async with teacher.running() as server:

        def die(_turn: int) -> Any:
            server.cancel()  # it answers what it has begun
            return reply(kernel("bad"))

        teacher.scripts["b"] = die
        with anyio.CancelScope(shield=True):
            ends.append(await distilled(request))
    failed = ends[0].failure
    assert isinstance(failed, ChildDied)
    assert "\n" not in str(failed)
    assert "has all answers and 1 finished attempts" in str(failed)
    assert "3 of 4 problems are not done (b)" in str(failed)
    assert set(rows(out, ACCEPTED)) == {"a#0"}
    lost = [each for each in caplog.records if "sending it again" in each.getMessage()]
    assert len(lost) == 1, "five attempts more, and one line"

    teacher.scripts["b"] = lambda turn: reply(kernel("good" if turn else "bad"))
    async with teacher.running():
        found = await distilled(request)
    assert found.failure is None
    assert set(rows(out, ACCEPTED)) == {"a#0", "b#0", "c#0", "d#0"}
    assert (teacher.asked["a", 0], teacher.asked["b", 0]) == (1, 1), "they were stored"


async def test_a_judge_that_fails_leaves_the_answer_to_be_judged_later(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    class BrokenOnce(WordJudge):
        async def __call__(self, problem: Any, code: str) -> Any:
            return await super().__call__(problem, code if self.judged else "infra")

    folder, judge = write_problems(tmp_path / "bench", "x", "y"), BrokenOnce()
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out), judge=judge)
        assert isinstance(found.failure, MachineError)
        assert "the judge failed" in str(found.failure)
        assert set(rows(out, ACCEPTED)) == {"y#0"}
        found = await distilled(request_of(teacher, folder, out), judge=judge)
    assert found.failure is None
    assert set(rows(out, ACCEPTED)) == {"x#0", "y#0"}
    assert teacher.asked["x", 0] == 1


async def test_a_line_that_a_kill_cut_off_is_dropped_and_nothing_else(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", "a", "b", "c")
    request = request_of(teacher, folder, out)
    async with teacher.running():
        await distilled(request)
        whole = {name: (out / name).read_bytes() for name in (ACCEPTED, ANSWERS)}
        # Every place where a kill can cut the last row, every 97th byte: its answers are in the
        # journal by then.
        start = whole[ACCEPTED].rstrip(b"\n").rfind(b"\n") + 1
        for end in range(start, len(whole[ACCEPTED]), 97):
            (out / ACCEPTED).write_bytes(whole[ACCEPTED][:end])
            (out / ANSWERS).write_bytes(whole[ANSWERS])
            await distilled(request)
            assert (out / ACCEPTED).read_bytes() == whole[ACCEPTED]
        assert teacher.asked.total() == 3
        (out / ACCEPTED).write_bytes(b"")
        (out / ANSWERS).write_bytes(whole[ANSWERS][:-5])
        judge = WordJudge()
        await distilled(request, judge=judge)
        assert (out / ACCEPTED).read_bytes() == whole[ACCEPTED]
        assert judge.judged == ["c"], "its verdict was cut off, its answer was not"
    assert teacher.asked.total() == 3


async def test_several_problems_are_in_play_at_the_same_time(
    teacher: FakeTeacher, tmp_path: Path, out: Path
) -> None:
    folder = write_problems(tmp_path / "bench", *"abcdef")
    running = most = 0

    class SlowJudge(WordJudge):
        async def __call__(self, problem: Any, code: str) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.sleep(0.02)
            running -= 1
            return await super().__call__(problem, code)

    async with teacher.running():
        await distilled(request_of(teacher, folder, out, concurrency=3), judge=SlowJudge())
    assert most == 3
    assert len(rows(out, ACCEPTED)) == 6
