"""The host's side of reward functions: real children, hostile functions."""

from __future__ import annotations

import hashlib
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.schema import RewardTable
from forge.errors import ChildDied, ConfigError, ForgeError, Stalled
from forge.process.sockets import open_socket_dir
from forge.records import Reason, Status, Verdict
from forge.rollout.rewards.scorer import open_scorer, try_function
from tests.e2e.commands import is_alive, wait_for

if TYPE_CHECKING:
    from pathlib import Path

WRONG = Verdict(status=Status.WRONG, reason=Reason.OK, detail="1")

HOSTILE = """\
import os, sys, threading, time

def score(verdict):
    match verdict.detail:
        case "prints":
            print("HTTP/1.1 200 OK" * 1000)
            os.write(1, b"{}")
        case "raises":
            return {"a": 1 / 0}
        case "sleeps":
            time.sleep(60)
        case "spins":
            while True:
                pass
        case "exits":
            os._exit(7)
        case "aborts":
            os.abort()
        case "forks":
            if os.fork() == 0:
                return {"a": -1.0}
        case "forks and stays":
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
            return {"a": 1.0, "pid": pid}
        case "starts a thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
    return {"a": 1.0}
"""


def table(tmp_path: Path, text: str, **keys: Any) -> RewardTable:
    (tmp_path / "mine.py").write_text(text)
    return RewardTable.model_validate({"function": f"{tmp_path}/mine.py:score", **keys})


async def scored(reward: RewardTable, tmp_path: Path, *verdicts: Verdict) -> list[Any]:
    """Terms of each verdict in order, or the error of it."""
    found: list[Any] = []
    with open_socket_dir() as socket_dir:
        async with open_scorer(reward, socket_dir=socket_dir, log_dir=tmp_path) as (scorer, _):
            for number, verdict in enumerate(verdicts):
                try:
                    found.append(await scorer.score(verdict, where=f"g1.r0.t{number}"))
                except ForgeError as error:
                    found.append(error)
    return found


def doing(words: str) -> Verdict:
    return Verdict(status=Status.WRONG, reason=Reason.OK, detail=words)


def test_what_a_function_does_beside_its_result_changes_no_answer(tmp_path):
    acts = ("prints", "forks", "starts a thread", "forks and stays", "quiet")
    found = anyio.run(scored, table(tmp_path, HOSTILE), tmp_path, *map(doing, acts))
    pid = int(found[3].pop("pid"))
    assert found == [{"a": 1.0}] * len(acts)
    wait_for(lambda: not is_alive(pid), timeout_s=5, what="the forked process to end")


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        ("raises", ConfigError, r"mine\.py:9: score raised ZeroDivisionError: division by zero"),
        ("sleeps", Stalled, r"mine\.py:11: score did not return within 2 s \(reward\.function_"),
        pytest.param(
            "spins", Stalled, r"mine\.py:1[34]: score did not return", marks=pytest.mark.long
        ),
        ("exits", ChildDied, r"mine\.py:3: score ended its process: exit 7"),
        pytest.param(
            "aborts",
            ChildDied,
            r"mine\.py:18: score ended its process: killed by signal 6",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_failed_call_is_one_line_with_place_and_turn(tmp_path, act, error, words):
    reward = table(tmp_path, HOSTILE, function_timeout_s=2.0)
    first, failed, later = anyio.run(
        scored, reward, tmp_path, doing("quiet"), doing(act), doing("quiet")
    )
    assert first == {"a": 1.0}
    assert type(failed) is error
    assert re.search(words, str(failed))
    assert str(failed).endswith("(g1.r0.t1)")
    assert "\n" not in str(failed)
    assert later is failed


@pytest.mark.long
def test_a_deadline_begins_with_its_own_call(tmp_path):
    reward = table(
        tmp_path,
        "import time\ndef score(verdict):\n    time.sleep(0.3)\n    return {'a': 1}\n",
        function_timeout_s=1.0,
    )

    async def at_once() -> list[Any]:
        found: list[Any] = []
        with open_socket_dir() as socket_dir:
            async with (
                open_scorer(reward, socket_dir=socket_dir, log_dir=tmp_path) as (scorer, _),
                anyio.create_task_group() as tasks,
            ):

                async def one(number: int) -> None:
                    found.append(await scorer.score(WRONG, where=str(number)))

                for number in range(5):
                    tasks.start_soon(one, number)
        return found

    assert anyio.run(at_once) == [{"a": 1.0}] * 5


def test_a_slow_function_does_not_block_the_event_loop(tmp_path):
    reward = table(
        tmp_path, "import time\ndef score(verdict):\n    time.sleep(0.5)\n    return {}\n"
    )

    async def ticks() -> int:
        num = 0
        with open_socket_dir() as socket_dir:
            async with (
                open_scorer(reward, socket_dir=socket_dir, log_dir=tmp_path) as (scorer, _),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(partial(scorer.score, WRONG, where="t"))
                end = time.monotonic() + 0.4
                while time.monotonic() < end:
                    await anyio.sleep(0.01)
                    num += 1
        return num

    assert anyio.run(ticks) > 3


@pytest.mark.parametrize(
    ("text", "keys", "words"),
    [
        (
            "def score():\n    return {}\n",
            {},
            r"mine\.py:1: score raised TypeError: .* \(trial call before the run\)",
        ),
        (
            "def score(verdict):\n    return {'a': verdict.timing.speedup}\n",
            {},
            r"mine\.py:2: score raised AttributeError",
        ),
        (
            "def score(rollouts):\n    return [[{'a': len(max(row))}] for row in rollouts]",
            {"function_per": "group"},
            r"mine\.py:2: score raised (ValueError|TypeError)",
        ),
        ("import os\nos._exit(3)\n", {}, r"mine\.py:1: the file ended its process: exit 3 \(load"),
    ],
)
def test_a_function_that_cannot_be_used_is_found_by_a_trial_call(tmp_path, text, keys, words):
    with pytest.raises((ConfigError, ChildDied), match=words):
        anyio.run(partial(try_function, table(tmp_path, text, **keys), is_timed=False))


@pytest.mark.long
def test_a_trial_of_a_timed_run_has_a_time(tmp_path):
    text = (
        "def score(verdict):\n"
        "    return {'a': verdict.timing.speedup_low} if verdict.is_correct else {}\n"
    )
    anyio.run(partial(try_function, table(tmp_path, text), is_timed=True))


def test_the_file_is_named_by_the_hash_of_what_was_executed(tmp_path):
    reward = table(tmp_path, "def score(verdict):\n    return {}\n")

    async def digest() -> str:
        with open_socket_dir() as socket_dir:
            opening = open_scorer(reward, socket_dir=socket_dir, log_dir=tmp_path)
            async with opening as (_, file):
                (tmp_path / "mine.py").write_text("raise SystemExit")
                return file.sha256

    content = (tmp_path / "mine.py").read_bytes()
    assert anyio.run(digest) == hashlib.sha256(content).hexdigest()
