"""`reward.function` in an experiment: its path, its name, and keys that it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.config.load import dump_experiment, load_experiment
from forge.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

EXPERIMENT = """\
name = "own"
[model]
init = "tiny"
[reward]
function = "mine.py:score"
{}
[[stage]]
kind = "eval"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("def score(verdict):\n    return {}\n")
    return tmp_path


def load(folder: Path, more: str = "", *overrides: str):
    (folder / "own.toml").write_text(EXPERIMENT.format(more))
    return load_experiment(folder / "own.toml", overrides=overrides)


def test_the_file_is_found_beside_the_experiment(folder, monkeypatch):
    monkeypatch.chdir("/")
    reward = load(folder).reward
    assert reward.function == f"{folder}/mine.py:score"
    assert reward.function_per == "turn"
    assert reward.function_timeout_s == 10.0


def test_a_resolved_experiment_has_the_same_function(folder, tmp_path):
    experiment = load(folder, 'function_per = "group"')
    (tmp_path / "resolved.toml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "resolved.toml") == experiment


def test_a_function_may_be_imported_or_assigned(folder):
    (folder / "mine.py").write_text("from os import *\n")
    load(folder)
    (folder / "mine.py").write_text("from statistics import mean as score\n")
    load(folder)
    (folder / "mine.py").write_text("score = dict\n")
    load(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def other(v): pass\ndef score2(v): pass\n", 'no "score"; one of other, score2'),
        ("", 'no "score"; one of its functions: none'),
        ("def score(:\n", r"mine\.py:1: SyntaxError"),
        ("\0", r"mine\.py:1: (SyntaxError|ValueError): source code"),
    ],
)
def test_a_file_without_the_function_is_a_mistake(folder, text, words):
    (folder / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=rf"own\.toml:5: reward\.function: .*{words}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_mistake_on_this_machine_only(folder):
    (folder / "mine.py").unlink()
    with pytest.raises(ConfigError, match=r"mine\.py\", which is not a file; a Python file with"):
        load(folder)
    load_experiment(folder / "own.toml", is_here=False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("correct = 1.0", r"own\.toml:6: reward\.correct: found 1\.0 with reward\.function"),
        ("rejected = -1.0", "whole reward"),
    ],
)
def test_a_weight_beside_a_function_is_a_mistake(folder, more, words):
    with pytest.raises(ConfigError, match=words):
        load(folder, more)


def test_options_of_a_function_need_one(folder):
    (folder / "own.toml").write_text(
        EXPERIMENT.format("function_timeout_s = 3.0").replace('function = "mine.py:score"\n', "")
    )
    with pytest.raises(ConfigError, match=r"found 3\.0 without reward\.function; both or none"):
        load_experiment(folder / "own.toml")


@pytest.mark.parametrize("value", ["mine.py", "mine:score", "mine.py:", "mine.py:a b", ":score"])
def test_a_value_without_file_or_name_is_a_mistake(folder, value):
    with pytest.raises(ConfigError, match='a file and a function of it, such as "my_rewards'):
        load(folder, "", f"reward.function={value}")
