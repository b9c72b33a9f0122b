"""Plans for several machines: roles of `[cluster]` on assumed nodes, and the machines of `forge
plan --assume`."""

import json
from pathlib import Path
from typing import Any

import pytest

from forge import cli
from forge.config.load import load_experiment
from forge.errors import ConfigError, MachineError
from forge.process.devices import Vendor
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.plan import Plan, plan, render
from tests.gpus import make_machine
from tests.views.terminals import shown

RECIPES = Path(__file__).parents[3] / "examples" / "cluster"
TWO, TEN = RECIPES / "train-and-judge.toml", RECIPES / "ten-nodes.toml"
NO_RANKS = "cluster.train_nodes=0"


def plan_for(file: Path, machines: str, *overrides: str) -> Plan:
    experiment = load_experiment(file, overrides=overrides, is_here=False)
    return plan(experiment, machine=assume(machines, here=this_machine(Path())))


def idle(planned: Plan) -> list[str]:
    return [note for note in planned.notes if note.endswith("idle")]


def text(planned: Plan) -> str:
    return shown(render(planned), width=250)


def test_each_role_has_a_row_and_the_memory_of_a_card() -> None:
    planned = plan_for(TEN, "10x8xH100-80GB")
    assert [each.name for each in planned.elsewhere] == [
        "3 nodes for ranks", "32 engines", "16 judges",
    ]  # fmt: skip
    (here,) = [each.gpu_bytes for each in planned.processes if each.name == "trainer"]
    assert planned.elsewhere[0].gpu_bytes == here
    assert all(each.gpu_bytes and each.gpu_bytes < 80 << 30 for each in planned.elsewhere)
    assert "role=serve" in text(planned)
    assert idle(planned) == []


@pytest.mark.parametrize(
    ("file", "machines", "overrides", "needed"),
    [
        (TWO, "2x8xH100-80GB", [], 1),
        (TEN, "10x8xH100-80GB", ["devices.train=4"], 9),
        # Roles without labels share a node: eight engines, and two beside four judges.
        (TEN, "3x8xH100-80GB", [NO_RANKS, "serve.replicas=10", "cluster.judges=4",
                                "cluster.serve_labels={}", "cluster.judge_labels={}"], 2),
        (TEN, "5x8xH100-80GB", [NO_RANKS, "serve.replicas=4", "serve.tensor_parallel=3"], 4),
        (TWO, "2x1xH100-80GB", ["devices.serve=0", "devices.train=0", "serve.engine='llama'",
                                "model={path='x'}", 'cluster.judge_on="cpu"', "serve.replicas=1"],
         1),
        # Cores and cards are apart, and a node may have labels of several keys.
        (TEN, "2x8xH100-80GB", [NO_RANKS, "serve.replicas=8", 'cluster.judge_on="cpu"',
                                "cluster.judge_labels={zone='a'}"], 1),
        (TEN, "2x8xH100-80GB", [NO_RANKS, "serve.replicas=2", "serve.tensor_parallel=3",
                                "cluster.judges=2", "cluster.judge_labels={zone='a'}"], 1),
    ],
)  # fmt: skip
def test_so_many_nodes_are_needed(
    file: Path, machines: str, overrides: list[str], needed: int
) -> None:
    num, _, kind = machines.partition("x")
    assert idle(plan_for(file, machines, *overrides)) == []
    more = plan_for(file, f"{int(num) + 2}x{kind}", *overrides)
    assert idle(more) == [f"2 of {needed + 2} nodes beside the head of {more.assumed} idle"]


def test_each_part_of_a_trainer_needs_a_node_of_its_own() -> None:
    with pytest.raises(MachineError, match=r"9 nodes would have room for 3 nodes for ranks, 4 GPU"):
        plan_for(TEN, "3x8xH100-80GB", "devices.train=4")
    with pytest.raises(MachineError, match=r"engines: 16 GPUs each, .* and a node has 8 GPUs"):
        plan_for(TEN, "9x8xH100-80GB", NO_RANKS, "serve.tensor_parallel=16")


def test_judges_without_room_are_a_warning_and_engines_without_room_are_refused():
    planned = plan_for(TWO, "2x8xH100-80GB", "cluster.judges=12")
    assert any("the other judges start when a node joins" in note for note in planned.notes)
    with pytest.raises(
        MachineError, match=r"6 nodes would have room for 32 engines, 1 GPU each, l"
    ):
        plan_for(TEN, "3x8xH100-80GB", NO_RANKS)
    with pytest.raises(MachineError, match=r"6 nodes would have room"):
        plan_for(TEN, "5x8xH100-80GB", NO_RANKS)


def test_memory_of_nodes_is_checked_as_at_home():
    with pytest.raises(MachineError, match=r"nodes: qwen3-8b-ten-nodes: GPU 0 \(Small\) needs"):
        plan_for(TEN, "7x8xSmall-16GB", NO_RANKS, "devices.train=0", "devices.gpus=[]")


def test_an_experiment_without_a_cluster_uses_the_first_machine():
    planned = plan_for(RECIPES.parents[1] / "experiments" / "qwen3-8b-full.toml", "3x8xH100-80GB")
    assert "without [cluster] only the first of 3 machines is used" in planned.notes


def test_without_assumed_nodes_the_cluster_has_a_row_for_each_role(capsys: Any) -> None:
    assert cli.run_command(["plan", str(TWO), "--assume", "8xH100-80GB", "--json"]) == 0
    (judges,) = json.loads(capsys.readouterr().out)["elsewhere"]
    assert judges["name"] == "8 judges"
    assert "role=judge" in judges["device"]


def test_judges_and_engines_share_the_cards_of_a_node():
    small = (
        "serve.slots=8", "serve.context_tokens=8192", "rollout.max_completion_tokens=2048",
        "serve.replicas=4", "cluster.judges=4", NO_RANKS, "cluster.share_gpus=true",
        "devices.train=4",
        "cluster.serve_labels={}", "cluster.judge_labels={}",
    )  # fmt: skip
    planned = plan_for(TEN, "2x4xH200-141GB", *small)
    assert idle(planned) == []
    assert any("half a GPU each" in each.device for each in planned.elsewhere)


HERE = make_machine(engines=frozenset(), hidden_gpus="all of them")


def test_an_assumed_machine_has_resources_for_each_card():
    machine = assume("8xH100-80GB", here=HERE)
    assert [gpu.index for gpu in machine.gpus] == list(range(8))
    assert {gpu.memory_bytes for gpu in machine.gpus} == {80 << 30}
    assert machine.gpus[0].vendor is Vendor.NVIDIA
    assert machine.gpus[0].name == "H100"
    assert machine.engines == {"llama", "vllm", "hf"}
    assert (machine.assumed, machine.hidden_gpus) == ("8xH100-80GB", "")
    assert machine.cores > HERE.cores
    assert len({gpu.uuid for gpu in machine.gpus}) == 8


def test_an_amd_card_is_recognised_by_its_name():
    card = assume("1xMI300X-192GB", here=HERE).gpus[0]
    assert (card.vendor, card.arch, card.memory_bytes) == (Vendor.AMD, "gfx942", 192 << 30)
    assert assume("1xRTX 4090-24GB", here=HERE).gpus[0].vendor is Vendor.NVIDIA
    assert assume("2xRX 7900-24GB", here=HERE).gpus[1].vendor is Vendor.AMD


@pytest.mark.parametrize("text", ["", "H100", "8xH100", "8xH100-80", "0xH100-80GB", "-1xH100-80GB",
                                  "8xH100-0GB", "8 x H100-80GB", "1x4090-24GB", "0x8xH100-80GB",
                                  "4x0xH100-80GB", "2x2x8xH100-80GB"])  # fmt: skip
def test_an_invalid_machine_is_refused_with_examples(text):
    with pytest.raises(ConfigError) as caught:
        assume(text, here=HERE)
    assert str(caught.value) == (
        f'--assume: found "{text}"; NUMBERxNAME-SIZEGB is allowed, such as "8xH100-80GB", '
        '"1xMI300X-192GB" or "2xRTX4090-24GB", and "4x8xH100-80GB" for four machines'
    )


def test_several_machines_are_a_head_and_nodes():
    machine = assume("3x8xH100-80GB", here=HERE)
    one = assume("8xH100-80GB", here=HERE)
    assert (machine.gpus, machine.cores, machine.memory_bytes) == (
        one.gpus, one.cores, one.memory_bytes,
    )  # fmt: skip
    assert machine.num_nodes == 2
    assert one.num_nodes == assume("1x8xH100-80GB", here=HERE).num_nodes == 0


def test_more_cards_than_any_cluster_has_are_refused():
    with pytest.raises(ConfigError, match=r'found "999x8xH100-80GB", 7992 GPUs; up to 4096 are'):
        assume("999x8xH100-80GB", here=HERE)
