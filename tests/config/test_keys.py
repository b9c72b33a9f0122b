"""Descriptions of keys: complete, and the same in `forge keys`, messages and editors."""

from pathlib import Path

import pytest

from forge.config.keys import all_keys, find_keys, schema_json
from forge.config.load import load_experiment
from forge.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_every_key_has_a_description():
    assert [key.path for key in all_keys() if not key.doc] == []


def test_a_key_shows_type_range_default_and_unit():
    keys = {key.path: key for key in all_keys()}
    group_size = keys["rollout.group_size"]
    assert (group_size.type, group_size.default) == ("an integer, 2 or more", "8")
    timeout = keys["serve.start_timeout_s"]
    assert (timeout.type, timeout.unit) == ("a number, above 0", "seconds")
    assert keys["judge.min_us"].unit == "microseconds"
    assert keys["model.init"].default == "absent"
    assert keys["stage grpo.steps"].default == "required"
    assert keys["judge.workers"].unit == ""
    assert keys["devices.train"].type == 'an integer, 0 or more, or "auto"'
    assert keys["judge.also"].type.startswith('a list of "forge", "kernelbench", "drkernel"')
    assert keys["rollout.max_staleness"].unit == "steps"


def test_keys_of_a_table_include_its_sub_tables_and_all_stages():
    assert {key.table for key in find_keys("model")} == {
        *("model", "model.tiny", "model.lora", "model.quantize")
    }
    assert {key.table for key in find_keys("stage")} == {
        "stage sft", "stage grpo", "stage eval", "stage search",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_stage_is_found_by_its_kind(kind):
    for name in (kind, f"stage.{kind}", f"stage {kind}"):
        assert {key.table for key in find_keys(name)} == {f"stage {kind}"}
        assert [key.path for key in find_keys(f"{name}.steps")] == [f"stage {kind}.steps"]
    assert {key.table for key in find_keys("eval")} == {"eval", "stage eval"}
    with pytest.raises(ConfigError, match=rf"there are .*\b{kind}\b"):
        find_keys("nonsense")


def test_the_schema_for_editors_is_up_to_date():
    path = ROOT / "experiments" / "schema.json"
    assert path.read_text() == schema_json(), "run: forge keys --schema > experiments/schema.json"


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
