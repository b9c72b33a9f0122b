"""Descriptions of keys: complete, and the same in `forge keys`, messages and editors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from forge.config.keys import all_keys, find_keys, render, schema_json
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
    assert keys["judge.also"].type == 'a list of "forge", "kernelbench", "drkernel"'
    assert keys["rollout.max_staleness"].unit == "steps"


def test_keys_of_a_table_include_its_sub_tables_and_all_stages():
    assert {key.table for key in find_keys("model")} == {
        *("model", "model.tiny", "model.lora", "model.quantize"),
    }
    assert {key.table for key in find_keys("stage")} == {"stage sft", "stage grpo", "stage eval"}


def test_one_key_is_found_by_its_path():
    (key,) = find_keys("rollout.group_size")
    assert key.path == "rollout.group_size"
    with pytest.raises(ConfigError, match=r"no such table or key; did you mean rollout.group_size"):
        find_keys("rollout.grup_size")


def rendered(width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render(all_keys()))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_whole_names_and_all_text(width: int):
    shown = rendered(width)
    assert {key.name for key in all_keys()} <= set(shown.split())
    assert sorted("".join(shown.split())) == sorted("".join(rendered(1000).split()))


def test_the_schema_for_editors_is_up_to_date():
    path = ROOT / "experiments" / "schema.json"
    assert path.read_text() == schema_json(), "run: forge keys --schema > experiments/schema.json"


def test_the_schema_for_editors_has_a_description_for_every_key():
    schema = json.loads(schema_json())
    tables = [schema, *schema["$defs"].values()]
    named = [(name, prop) for table in tables for name, prop in table["properties"].items()]
    assert [name for name, prop in named if "description" not in prop] == []
