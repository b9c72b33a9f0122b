"""The recipes: each loads anywhere, and plans for the GPUs it is made for. `forge init` writes one
outside of a checkout, complete, and overwrites nothing.
"""

import json
import re
from pathlib import Path

import pytest

from forge.cli import run_command
from forge.config.load import load_build, load_experiment
from forge.config.recipes import write_recipe
from forge.config.schema import Experiment
from forge.errors import ConfigError, MachineError
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.plan import Plan, plan
from tests.views.terminals import told

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))

EIGHT = ("8xH100-80GB", "8xA100-40GB", "8xMI300X-192GB")
TOO_SMALL = {
    # Machines of eight GPUs whose memory is too small for a recipe, by its own numbers.
    "kernelllm-8b-single-turn": {"8xA100-40GB"},
    "mi300x-8b": {"8xA100-40GB"},
    "mi300x-8b-single-turn": {"8xA100-40GB"},
    "qwen3-30b-a3b-lora": {"8xA100-40GB"},
    "qwen3-8b-full": {"8xA100-40GB"},
    "qwen3-8b-kernelbench": {"8xA100-40GB"},
    "qwen3-8b-single-turn": {"8xA100-40GB"},
}
ONE_CARD = {
    "h200-from-scratch": "1xH200-141GB", "smollm2-harvest": "1xH200-141GB",
    "workstation-24gb": "1xRTX 4090-24GB",
}  # fmt: skip


def load(name: str) -> Experiment:
    return load_experiment(FOLDER / f"{name}.toml", is_here=False)


def plan_for(name: str, gpus: str, tmp_path: Path) -> Plan:
    return plan(load(name), machine=assume(gpus, here=this_machine(tmp_path)))


@pytest.mark.parametrize("gpus", EIGHT)
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_plans_for_eight_gpus_or_says_what_is_missing(name, gpus, tmp_path):
    if gpus in TOO_SMALL.get(name, ()):
        with pytest.raises(MachineError, match=rf"{name}: GPU \d .* GB"):
            plan_for(name, gpus, tmp_path)
        return
    planned = plan_for(name, gpus, tmp_path)
    assert planned.phases
    assert planned.params, "the shape of its model is known without a download"


def test_every_recipe_prints_its_prompt_for_a_machine_that_is_elsewhere(capsys):
    problem = str(ROOT / "tests/zoo/problems/relu.py")
    for name in NAMES:
        argv = ["data", "prompt", problem, "--experiment", str(FOLDER / f"{name}.toml")]
        assert run_command([*argv, "--assume", "1xL40S-48GB", "--json"]) == 0, name
        shown = json.loads(capsys.readouterr().out)["messages"]
        asked = " ".join(message["content"] for message in shown)
        recipe = load(name)
        names_card = recipe.prompt.preset in ("standard", "kernelbench") and recipe.devices.judge
        assert ("L40S" in asked) == bool(names_card), name


@pytest.mark.parametrize(("name", "gpus"), ONE_CARD.items())
def test_a_recipe_for_one_gpu_runs_engine_trainer_and_judge_on_it_without_sleep(
    name, gpus, tmp_path
):
    placement = plan_for(name, gpus, tmp_path).placement
    assert [placement.roles_of(gpu.uuid) for gpu in placement.gpus] == [("serve", "judge", "train")]
    assert not placement.sleeps


TRAINED_ON = {"rows/trinity.toml": ["trinity-mini-grpo", "trinity-mini-qlora-sft"]}


@pytest.mark.parametrize("name", ["qwen3-8b-full", "qwen3-8b-kernelbook-sft"])
def test_a_harvest_has_the_policy_and_the_folder_of_the_recipe_that_trains_on_it(name):
    text, recipe = (FOLDER / f"{name}.toml").read_text(), load(name)
    found = re.search(r"forge data harvest \S+ --policy (\S+) --out experiments/(\S+)", text)
    assert found[1] == recipe.judge.policy
    assert recipe.data.parts()[0].path == FOLDER / found[2] / "train.parquet"
    assert not recipe.prompt.thinking, "harvested answers have none"


@pytest.mark.parametrize("file", TRAINED_ON)
def test_rows_have_the_prompts_and_the_policy_of_the_recipes_that_train_on_them(file, tmp_path):
    (heldout := tmp_path / "problems").mkdir()
    overrides = [f'heldout.paths=["{heldout}"]', f"input.path={tmp_path}"]
    build = load_build(FOLDER / file, overrides=overrides)
    assert build.filters.judged
    for name in TRAINED_ON[file]:
        recipe = load(name)
        assert recipe.prompt == build.prompt
        assert recipe.judge.policy == build.judge.policy
        if recipe.data.has_files:
            assert recipe.data.parts()[0].path == build.output.dir / "train.parquet"
            written = write_recipe(name, into=tmp_path / name)
            assert tmp_path / name / file in written
            with pytest.raises(ConfigError, match=rf"`forge data build {written[-2]}` writes it"):
                load_experiment(written[0], overrides=[f"problems.path={heldout}"])


def test_the_documents_list_every_recipe():
    text = (FOLDER.parent / "docs/how-to/recipes.md").read_text()
    assert [name for name in NAMES if f"`experiments/{name}.toml`" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_written_recipe_loads_without_a_checkout(name, tmp_path):
    written = write_recipe(name, into=tmp_path)
    assert written[0] == tmp_path / f"{name}.toml"
    assert load_experiment(written[0], is_here=False).name == name
    assert "experiments/" not in written[0].read_text()


@pytest.mark.parametrize("folder", ["experiments", "examples", "written"])
def test_the_first_line_of_an_experiment_names_a_schema_that_is_there(folder, tmp_path):
    if folder == "written":
        write_recipe("quickstart", into=tmp_path)
    found = (tmp_path if folder == "written" else ROOT / folder).rglob("*.toml")
    paths = [path for path in found if path.parent.name != "rows"]
    assert paths
    for path in paths:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert (named := re.fullmatch(r"#:schema (\S+/schema\.json)", first)), path
        assert json.loads((path.parent / named[1]).read_text())["title"] == "Experiment"


def test_without_a_name_all_recipes_are_listed_with_a_sentence(capsys):
    listed = {each["name"]: each["summary"] for each in json.loads(told(capsys, "init", "--json"))}
    assert sorted(listed) == NAMES
    assert all(re.fullmatch(r"\S.{20,300}\.", summary) for summary in listed.values())
    assert all(name in told(capsys, "init") for name in NAMES[:1])


def test_an_unknown_name_is_one_line_with_the_nearest_and_all(tmp_path):
    with pytest.raises(ConfigError) as raised:
        write_recipe("quikstart", into=tmp_path)
    said = str(raised.value)
    assert said.startswith("quikstart: no such recipe; did you mean quickstart? allowed: eval-")
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stops_init_before_anything_is_written(tmp_path):
    (tmp_path / "mi300x-8b.toml").write_text("mine")
    with pytest.raises(ConfigError, match=r"mi300x-8b\.toml: it exists with other content"):
        write_recipe("mi300x-8b-single-turn", into=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mi300x-8b.toml"]


def test_only_a_schema_of_forge_is_replaced(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"title": "mine"}))
    with pytest.raises(ConfigError, match=r"schema\.json: it exists with other content"):
        write_recipe("quickstart", into=tmp_path)
    of_forge = json.loads((ROOT / "experiments/schema.json").read_text())
    schema.write_text(json.dumps(of_forge))  # of another version: other text
    assert write_recipe("quickstart", into=tmp_path) == [tmp_path / "quickstart.toml", schema]
    assert schema.read_text() == (ROOT / "experiments/schema.json").read_text()


def test_a_missing_file_with_the_name_of_a_recipe_names_init(tmp_path):
    with pytest.raises(ConfigError, match=r'no such file; "forge init quickstart" writes it$'):
        load_experiment(tmp_path / "quickstart.toml")
