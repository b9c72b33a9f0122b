"""`forge data distill`: attempts, turns, rows; the same command again after any end; bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from forge.commands.distill import ACCEPTED, ANSWERS, REJECTED
from forge.data.pairs.files import read_pairs
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from tests.cli.relu_kernel import KERNEL
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
    return read_pairs(out / ACCEPTED, prompts=PROMPTS)


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


ROOT = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("distilling_child.py")
EXPERIMENT = """
name = "shown"
[model]
init = "tiny"
[problems]
num_problems = 64
num_heldout = 24
sft_by_level = [2, 2, 2, 2]
[[stage]]
kind = "eval"
"""


def start(*argv: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


async def ended(child: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    stdout, stderr = await anyio.to_thread.run_sync(partial(child.communicate, timeout=100))
    return child.returncode, stdout.decode(), stderr.decode()


async def test_kill_9_loses_nothing_and_no_stored_answer_is_requested_twice(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    names = [f"p{number:02}" for number in range(12)]
    folder, out = write_problems(tmp_path / "bench", *names), tmp_path / "out"
    for name in names:
        teacher.scripts[name] = lambda turn: reply(kernel("good" if turn == 2 else "bad"))
    async with teacher.running():
        for limit in (5, 17):
            child = start(CHILD, teacher.url, folder, out)
            with anyio.fail_after(60):
                await teacher.wait_for(limit)
            child.send_signal(signal.SIGKILL)
            assert (await ended(child))[0] == -signal.SIGKILL
        stored = [
            (line["key"].removesuffix("#0"), line["turn"])
            for line in map(json.loads, (out / ANSWERS).read_bytes().splitlines(keepends=False))
            if line["kind"] == "answer"
        ]
        before = teacher.asked.copy()
        assert stored
        found = await distilled(request_of(teacher, folder, out))
    assert found.failure is None
    assert all(teacher.asked[place] == before[place] for place in stored)
    assert teacher.asked.total() <= 36 + 2 * 3, "at most those on their way at each kill"
    rows = [json.loads(line) for line in (out / ACCEPTED).read_text().splitlines()]
    assert sorted(row["problem_id"] for row in rows) == names
    assert {row["num_turns"] for row in rows} == {3}


async def failing(teacher: FakeTeacher, folder: Path, out: Path, **values: Any) -> ForgeError:
    async with teacher.running():
        with pytest.raises(ForgeError) as caught:
            await distilled(request_of(teacher, folder, out, **values))
    assert "\n" not in str(caught.value)
    return caught.value


async def test_a_server_that_cannot_be_used_is_one_line_before_anything_is_asked(
    teacher: FakeTeacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = write_problems(tmp_path / "bench", "x"), tmp_path / "out"
    error = await failing(teacher, folder, out, model="kimi-k9")
    assert isinstance(error, ConfigError)
    assert str(error) == f'--model: found "kimi-k9"; {teacher.url} has: kimi'
    teacher.models = [f"m{number}" for number in range(20)]
    error = await failing(teacher, folder, out)
    assert str(error).startswith(f"--model is absent, and {teacher.url} has: m0, m1")
    assert str(error).endswith("and 12 more")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    error = await failing(teacher, folder, out, api_key_env="NO_SUCH_KEY")
    assert str(error) == '--api-key-env: found "NO_SUCH_KEY", which is not set or empty'
    assert teacher.bodies == []
    assert not out.exists()

    request = request_of(teacher, folder, out)
    with pytest.raises(MachineError, match=r"--url: no server answers: unix:.* hung up"):
        await distilled(request)  # it is not running


async def test_a_refused_key_and_a_wrong_path_end_the_command_at_once(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder, out = write_problems(tmp_path / "bench", *"abcdef"), tmp_path / "out"
    for status, words in [(401, "--api-key-env names the key's variable"), (404, "404: no")]:
        teacher.scripts = dict.fromkeys("abcdef", lambda _turn, s=status: failure(s))
        teacher.asked.clear()
        async with teacher.running():
            found = await distilled(request_of(teacher, folder, out))
        assert isinstance(found.failure, ConfigError)
        assert words in str(found.failure)
        assert teacher.asked.total() == 1


async def test_a_silent_server_is_asked_twice(teacher: FakeTeacher, tmp_path: Path) -> None:
    folder, out = write_problems(tmp_path / "bench", "x"), tmp_path / "out"
    teacher.scripts["x"] = lambda _turn: failure(504, "no answer in time")
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    assert isinstance(found.failure, Stalled)
    assert teacher.asked["x", 0] == 2


async def test_an_answer_in_another_format_is_one_line(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder, out = write_problems(tmp_path / "bench", "x"), tmp_path / "out"
    teacher.scripts["x"] = lambda _turn: failure(200, "hello")
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out))
    assert "its answer is not in the chat format" in str(found.failure)
    assert "\n" not in str(found.failure)


async def test_the_newer_name_of_the_limit_is_used_once_a_server_asks_for_it(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    def newer(_turn: int) -> Any:
        if "max_tokens" in teacher.bodies[-1]:
            return failure(400, "use max_completion_tokens")
        return reply(kernel("good"))

    folder, out = write_problems(tmp_path / "bench", *"abc"), tmp_path / "out"
    teacher.scripts = dict.fromkeys("abc", newer)
    async with teacher.running():
        found = await distilled(request_of(teacher, folder, out, temperature=0.5, seed=3))
    assert found.failure is None
    assert teacher.asked.total() == 4
    assert teacher.bodies[-1]["temperature"] == 0.5
    assert 0 <= teacher.bodies[-1]["seed"] < 1 << 31


async def test_a_directory_of_other_settings_or_prompts_is_refused(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder, out = write_problems(tmp_path / "bench", "x"), tmp_path / "out"
    async with teacher.running():
        await distilled(request_of(teacher, folder, out))
    error = await failing(teacher, folder, out, turns=4)
    assert "its answers were made with turns = 3; found 4" in str(error)
    file = folder / "x.py"
    file.write_text(file.read_text().replace("torch.relu", "torch.tanh"))
    error = await failing(teacher, folder, out)
    assert "x or its prompt has changed since its answers were stored" in str(error)
    (out / ANSWERS).unlink()
    error = await failing(teacher, folder, out)
    assert f"found {ACCEPTED} without {ANSWERS}" in str(error)


async def test_a_damaged_line_and_a_second_writer_are_one_line(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder, out = write_problems(tmp_path / "bench", "x"), tmp_path / "out"
    async with teacher.running():
        await distilled(request_of(teacher, folder, out))
    with (out / ACCEPTED).open("a") as file:
        file.write("{}\n")
    error = await failing(teacher, folder, out)
    assert str(error).startswith(f"{out / ACCEPTED}, line 2: not written by this version")

    class Nosy(WordJudge):
        async def __call__(self, problem: Any, code: str) -> Any:
            with pytest.raises(ConfigError, match="another process writes there"):
                await distilled(request_of(teacher, folder, tmp_path / "second"))
            return await super().__call__(problem, code)

    async with teacher.running():
        await distilled(request_of(teacher, folder, tmp_path / "second"), judge=Nosy())


async def test_an_experiment_gives_its_problems_without_the_held_out_ones(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    file, said = tmp_path / "x.toml", list[str]()
    file.write_text(EXPERIMENT)
    async with teacher.running():
        found = await distilled(request_of(teacher, file, tmp_path / "out"), said=said)
    assert found.failure is None
    assert "left out 24 held-out problems" in said
    assert len(found.problems) == 40


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["missing", "--url", "http://127.0.0.1:9"], "missing: no such file or directory"),
        (["p.py", "--url", "localhost:8000"], "--url localhost:8000: http://HOST:PORT[/PATH]"),
        (["p.py", "--url", "http://x", "--price", "3"], "--price 3: two numbers of dollars"),
        (["p.py", "--url", "http://x", "--body", "[]"], "--body []: an object"),
        (["p.py", "--url", "http://x", "--set", "seed=1"], "p.py is no experiment file"),
        (["p.py", "--url", "http://x", "--preset", "x"], "--preset x: one of tiny, standard, kern"),
        (
            ["x.toml", "--url", "http://x", "--preset", "tiny"],
            "--preset: x.toml has its own: --set",
        ),
        (["p.py", "--url", "http://x", "--min-speedup", "0"], "--min-speedup 0: must be above 0"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from forge import cli

    monkeypatch.chdir(tmp_path)
    write_problems(tmp_path, "p")
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    assert cli.run_command(["data", "distill", *argv, "--out", "out"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1


async def test_the_command_judges_answers_of_a_server_and_ends_with_a_table(
    teacher: FakeTeacher, tmp_path: Path
) -> None:
    folder, out = write_problems(tmp_path / "bench", "never", "repaired"), tmp_path / "out"
    right, wrong = KERNEL, KERNEL.replace("tl.maximum(value, 0.0)", "value")
    teacher.scripts["repaired"] = lambda turn: reply(f"```python\n{right if turn else wrong}```")
    teacher.scripts["never"] = lambda _turn: reply("I cannot.")
    argv = ["data", "distill", folder, "--url", teacher.url, "--out", out, "--workers", "1"]
    async with teacher.running():
        child = start("-m", "forge", *argv, "--turns", "2", "--price", "1,2")
        code, stdout, stderr = await ended(child)
    assert code == 0, stderr
    assert "1 of 2 problems accepted" in stdout
    assert "never" in stdout
    assert "no GPU: the judge measures no times" in stderr
    (row,) = [json.loads(line) for line in (out / ACCEPTED).read_text().splitlines()]
    assert [turn["status"] for turn in row["turns"]] == ["wrong", "correct"]
    assert "judge> wrong" in row["messages"][3]["content"]
    (lost,) = [json.loads(line) for line in (out / REJECTED).read_text().splitlines()]
    assert (lost["reason"], lost["final_triton_code"]) == ("no_code_block", None)
