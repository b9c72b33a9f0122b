"""`forge init`: a recipe outside of a checkout, complete, and nothing overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forge.cli import run_command
from forge.config.load import load_experiment
from forge.config.recipes import list_recipes, write_recipe
from forge.errors import ConfigError, MachineError

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))


def test_the_package_has_every_recipe_of_the_checkout() -> None:
    assert sorted(recipe.name for recipe in list_recipes()) == NAMES
    assert (ROOT / "forge/recipes").resolve() == ROOT / "experiments"


@pytest.mark.parametrize("name", NAMES)
def test_a_written_recipe_loads_without_a_checkout(name: str, tmp_path: Path) -> None:
    written = write_recipe(name, into=tmp_path)
    assert written[0] == tmp_path / f"{name}.toml"
    assert load_experiment(written[0], is_here=False).name == name
    assert "experiments/" not in written[0].read_text()


@pytest.mark.parametrize("folder", ["experiments", "examples", "written"])
def test_the_first_line_of_an_experiment_names_a_schema_that_is_there(
    folder: str, tmp_path: Path
) -> None:
    if folder == "written":
        write_recipe("quickstart", into=tmp_path)
    paths = list((tmp_path if folder == "written" else ROOT / folder).rglob("*.toml"))
    assert paths
    for path in paths:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert (named := re.fullmatch(r"#:schema (\S+/schema\.json)", first)), path
        assert json.loads((path.parent / named[1]).read_text())["title"] == "Experiment"


def test_without_a_name_all_recipes_are_listed_with_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["init", "--json"]) == 0
    listed = {each["name"]: each["summary"] for each in json.loads(capsys.readouterr().out)}
    assert sorted(listed) == NAMES
    assert all(re.fullmatch(r"\S.{20,300}\.", summary) for summary in listed.values())
    assert run_command(["init"]) == 0
    assert all(name in capsys.readouterr().out for name in NAMES[:1])


def test_a_written_recipe_is_followed_by_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["init", "mi300x-8b-single-turn.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "wrote mi300x-8b-single-turn.toml", "wrote mi300x-8b.toml", "wrote schema.json"
    ]  # fmt: skip
    assert '"forge run mi300x-8b-single-turn.toml"' in lines[3]
    assert run_command(["init", "mi300x-8b-single-turn"]) == 2
    assert "it exists already" in capsys.readouterr().err


def test_an_unknown_name_is_one_line_with_the_nearest_and_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        write_recipe("quikstart", into=tmp_path)
    said = str(raised.value)
    assert said.startswith("quikstart: no such recipe; did you mean quickstart? allowed: eval-")
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stops_init_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "mi300x-8b.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"mi300x-8b\.toml: it exists with other content"):
        write_recipe("mi300x-8b-single-turn", into=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mi300x-8b.toml"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"quickstart\.toml: cannot be written: No such file"):
        write_recipe("quickstart", into=tmp_path / "absent")


def test_only_a_schema_of_forge_is_replaced(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"title": "mine"}))
    with pytest.raises(ConfigError, match=r"schema\.json: it exists with other content"):
        write_recipe("quickstart", into=tmp_path)
    of_forge = json.loads((ROOT / "experiments/schema.json").read_text())
    schema.write_text(json.dumps(of_forge))  # of another version: other text
    assert write_recipe("quickstart", into=tmp_path) == [tmp_path / "quickstart.toml", schema]
    assert schema.read_text() == (ROOT / "experiments/schema.json").read_text()


def test_a_missing_file_with_the_name_of_a_recipe_names_init(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no such file; "forge init quickstart" writes it$'):
        load_experiment(tmp_path / "quickstart.toml")
