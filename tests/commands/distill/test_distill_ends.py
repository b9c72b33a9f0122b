"""`forge data distill` after `kill -9`, with input that cannot be used, and whole with a judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from forge.commands.distill_journal import ACCEPTED, ANSWERS, REJECTED
from forge.errors import ConfigError, ForgeError, MachineError, Stalled
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

pytestmark = pytest.mark.anyio
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
