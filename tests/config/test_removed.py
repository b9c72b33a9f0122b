"""Keys that were removed: a mistake in a user's experiment, left out of a recording."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from forge.config import removed
from forge.config.load import load_experiment
from forge.config.removed import REMOVED, RemovedKey, is_recording
from forge.errors import ConfigError

SCHEMA = Path(__file__).parents[2] / "experiments" / "schema.json"
HEAD = 'name = "x"\nmodel.init = "tiny"\n'
EVAL = '[[stage]]\nkind = "eval"\n'


@pytest.fixture(autouse=True)
def _says_each_file_again() -> None:
    removed._say.cache_clear()


def text_with(key: RemovedKey) -> str:
    """An experiment with the key."""
    *table, name = key.path.split(".")
    if table[0] == "stage":
        return f"{HEAD}{EVAL}{name} = 1\n"
    return f"{HEAD}{EVAL}[{table[0]}]\n{name} = 1\n"


def written(folder: Path, text: str, *, is_run: bool) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    if is_run:
        (folder / "identity.json").write_text("{}")
    assert is_recording(path) is is_run
    return path


@pytest.mark.parametrize("key", REMOVED, ids=lambda key: key.path)
def test_a_removed_key_of_a_user_is_refused_with_what_to_use(
    tmp_path: Path, key: RemovedKey
) -> None:
    path = written(tmp_path, text_with(key), is_run=False)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    (line,) = str(caught.value).splitlines()
    assert key.path.rpartition(".")[2] in line
    assert line.endswith(f": removed ({key.date}); {key.instead}")


@pytest.mark.parametrize("key", REMOVED, ids=lambda key: key.path)
def test_a_removed_key_of_a_recording_is_left_out_and_named_once(
    tmp_path: Path, key: RemovedKey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = written(tmp_path, text_with(key), is_run=True)
    (tmp_path / "plain.toml").write_text(HEAD + EVAL)
    assert load_experiment(path) == load_experiment(tmp_path / "plain.toml")
    load_experiment(path)
    name = key.path.replace("*", "0")
    assert caplog.messages == [f"{path}: keys of an earlier forge are ignored: {name}"]


def test_an_unknown_key_of_a_recording_is_a_mistake_still(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}{EVAL}[judge]\nallow_op = 1\n", is_run=True)
    with pytest.raises(ConfigError, match=r"judge\.allow_op: unknown key"):
        load_experiment(path)


def test_a_removed_key_is_refused_with_set_for_a_recording_too(tmp_path: Path) -> None:
    path = written(tmp_path, f"{HEAD}{EVAL}[judge]\ntorch_share = 0.1\n", is_run=True)
    with pytest.raises(ConfigError, match=r"--set judge\.torch_share: removed"):
        load_experiment(path, overrides=["judge.torch_share=0.2"])


def test_no_removed_key_is_in_the_schema() -> None:
    defined = json.loads(SCHEMA.read_text())["$defs"].values()
    known = {name for table in defined for name in table.get("properties", {})}
    assert not [key.path for key in REMOVED if key.path.rpartition(".")[2] in known]
