"""The user's reward function: loaded, called and checked in its child; faults, silence and deaths
are one line; its file is recorded.
"""

import hashlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from forge.config.schema import RewardTable
from forge.errors import ChildDied, ConfigError, ForgeError, Stalled
from forge.process.sockets import open_socket_dir
from forge.records import Reason, Status, Verdict
from forge.rollout.rewards.function import MODULE, Fault, RewardFunction, load
from forge.rollout.rewards.scorer import FunctionFile, open_scorer, try_function
from forge.runner.reward_function import to_event
from tests.e2e.commands import is_alive, wait_for

WRONG = Verdict(status=Status.WRONG, reason=Reason.OK, detail="")
REFUSED = Verdict(status=Status.WRONG, reason=Reason.OK, detail="1")
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
FILE = FunctionFile(path=Path("/x/mine.py"), name="score", sha256="ab" * 32)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RewardFunction]:
    """Loads `score` from a text; what it leaves in this process is removed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))

    def make(text: str) -> RewardFunction:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return load(path, "score")

    return make


def test_a_function_may_import_its_neighbours(loaded, tmp_path):
    (tmp_path / "weights_of_mine.py").write_text("HALF = 0.5\n")
    function = loaded(
        "from weights_of_mine import HALF\ndef score(verdict):\n    return {'a': HALF}\n"
    )
    assert function.score(WRONG) == {"a": 0.5}


def test_a_neighbour_shadows_no_module(loaded, tmp_path):
    (tmp_path / "statistics.py").write_text("raise SystemExit\n")
    sys.modules.pop("statistics", None)
    function = loaded(
        "import statistics\ndef score(verdict):\n    return {'a': statistics.mean([1])}\n"
    )
    assert function.score(WRONG) == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("def score(verdict:\n    pass\n", 1, "SyntaxError"),
        ("\nimport no_such_module\n", 2, "ModuleNotFoundError"),
        ("\n\nraise SystemExit(3)\n", 3, "SystemExit"),
        ("def other(verdict):\n    return {}\n", 1, 'defines no "score"'),
        ("score = 3\n", 1, "int; a function"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_a_fault_with_its_line(loaded, text, line, words):
    with pytest.raises(Fault) as caught:
        loaded(text)
    assert caught.value.line == line
    assert words in caught.value.text


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("return {'a': float('nan')}", 1, 'nan as "a"; a finite number'),
        ("return {'a': -float('inf')}", 1, 'inf as "a"; a finite number'),
        ("return {'a': 10 ** 400}", 1, 'no float as "a"'),
        ("return {'a': 1e308, 'b': 1e308}", 1, "sum is not finite"),
        ("return {'a': 'much'}", 1, 'str as "a"; a number'),
        ("return {'a': 1j}", 1, 'complex as "a"; a number'),
        ("return {3: 1.0}", 1, "a term named 3"),
        ("return {'a b': 1.0}", 1, "a term named 'a b'"),
        ("return {f't{i}': 0 for i in range(65)}", 1, "65 terms; at most 64"),
        ("return 1.0", 1, "float; a dict"),
        ("return None", 1, "None; a dict"),
        ("return [verdict]", 1, "list; a dict"),
        ("x = 1\n    return {'a': 1 / 0}", 3, "score raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(7)", 2, "score raised SystemExit: 7"),
        ("raise KeyboardInterrupt", 2, "score raised KeyboardInterrupt: (no message)"),
        ("return score(verdict)", 2, "score raised RecursionError"),
    ],
)
def test_a_result_that_is_no_terms_is_a_fault_with_its_line(loaded, body, line, words):
    function = loaded(f"def score(verdict):\n    {body}\n")
    with pytest.raises(Fault) as caught:
        function.score(WRONG)
    assert words in caught.value.text
    assert caught.value.line == line
    assert "\n" not in caught.value.text


def test_a_group_is_scored_as_a_whole(loaded):
    function = loaded(
        "def score(rollouts):\n"
        "    num = sum(map(len, rollouts))\n"
        "    return [[{'share': 1 / num} for _ in row] for row in rollouts]\n"
    )
    assert function.score_group([[WRONG, WRONG], [], [WRONG, WRONG]]) == [
        [{"share": 0.25}] * 2, [], [{"share": 0.25}] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [[{}]]", "1 entries; one for each rollout, 2 here"),
        ("return [[{}, {}], []]", "0 entries for rollout 1; one for each turn, 1 here"),
        ("return [{}, {}]", "dict for rollout 0; a list with one entry for each turn"),
        ("return {}", "dict; a list with one entry for each rollout"),
        ("return [[{}, {'a': float('nan')}], [{}]]", 'nan as "a" for rollout 0, turn 1'),
    ],
)
def test_terms_of_another_form_than_the_group_are_a_fault(loaded, body, words):
    function = loaded(f"def score(rollouts):\n    {body}\n")
    with pytest.raises(Fault) as caught:
        function.score_group([[WRONG, WRONG], [WRONG]])
    assert words in caught.value.text


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
                tasks.start_soon(partial(scorer.score, REFUSED, where="t"))
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


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ({}, "reward.function: /x/mine.py:score, sha256 abababababab"),
        ({"sha256": "cd" * 32}, "it has changed since the last attempt (cdcdcdcdcdcd)"),
        ({"path": Path("/y/mine.py")}, "it was /y/mine.py:score"),
    ],
)
def test_a_file_is_recorded_if_it_is_another_than_before(before, words):
    event = to_event(FILE, before=replace(FILE, **before).to_json() if before else {})
    assert words in event.message
    assert to_event(FILE, before=event.data) is None
