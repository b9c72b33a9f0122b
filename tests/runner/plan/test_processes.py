"""Plans for several machines: roles of `[cluster]` on assumed nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forge import cli
from forge.config.load import load_experiment
from forge.errors import MachineError
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.plan import Plan, plan, render
from forge.runner.plan.processes import spans

RECIPES = Path(__file__).parents[3] / "examples" / "cluster"
TWO, TEN = RECIPES / "train-and-judge.toml", RECIPES / "ten-nodes.toml"
NO_RANKS = "cluster.train_nodes=0"


def plan_for(file: Path, machines: str, *overrides: str) -> Plan:
    experiment = load_experiment(file, overrides=overrides, is_here=False)
    return plan(experiment, machine=assume(machines, here=this_machine(Path())))


def rows(planned: Plan) -> list[str]:
    """Processes on nodes, with their node and cards."""
    return [f"{each.name} @ {each.device}" for each in planned.elsewhere]


def idle(planned: Plan) -> list[str]:
    return [note for note in planned.notes if note.endswith("idle")]


def shown(planned: Plan) -> str:
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render(planned))
    return captured.get()


def test_one_node_trains_and_one_judges() -> None:
    planned = plan_for(TWO, "2x8xH100-80GB")
    assert [each.device for each in planned.processes if each.name == "trainer"] == ["GPU 4-7"]
    assert rows(planned) == ["judge-0 to judge-7 @ node 1 (role=judge): GPU 0-7"]
    assert idle(planned) == []
    assert "node 1 (role=judge): GPU 0-7" in shown(planned)


def test_four_nodes_train_four_generate_and_two_judge() -> None:
    planned = plan_for(TEN, "10x8xH100-80GB")
    assert rows(planned) == [
        *(f"trainer @ node {k} (role=train): GPU 0-7" for k in (1, 2, 3)),
        *(f"serve-{8 * k - 32} to serve-{8 * k - 25} @ node {k} (role=serve): GPU 0-7"
          for k in (4, 5, 6, 7)),
        *(f"judge-{8 * k - 64} to judge-{8 * k - 57} @ node {k} (role=judge): GPU 0-7"
          for k in (8, 9)),
    ]  # fmt: skip
    (here,) = [each.gpu_bytes for each in planned.processes if each.name == "trainer"]
    assert {each.gpu_bytes for each in planned.elsewhere if each.name == "trainer"} == {here}
    assert all(each.gpu_bytes and each.gpu_bytes < 80 << 30 for each in planned.elsewhere)
    assert idle(planned) == []


def test_a_node_takes_one_part_of_the_trainer_and_all_parts_are_needed() -> None:
    with pytest.raises(MachineError, match=r"2 of 3 nodes for ranks \(8 GPUs each, labelled role"):
        plan_for(TEN, "3x8xH100-80GB")
    planned = plan_for(TEN, "10x8xH100-80GB", "devices.train=4")
    assert rows(planned)[:3] == [f"trainer @ node {k} (role=train): GPU 0-3" for k in (1, 2, 3)]
    assert idle(planned) == [f"node {k}: GPU 4-7 idle" for k in (1, 2, 3)]


def test_roles_without_labels_share_a_node() -> None:
    planned = plan_for(
        TEN, "3x8xH100-80GB", NO_RANKS, "serve.replicas=10", "cluster.judges=4",
        "cluster.serve_labels={}", "cluster.judge_labels={}",
    )  # fmt: skip
    assert rows(planned) == [
        "serve-0 to serve-7 @ node 1: GPU 0-7", "serve-8 to serve-9 @ node 2: GPU 0-1",
        "judge-0 to judge-3 @ node 2: GPU 2-5",
    ]  # fmt: skip
    assert idle(planned) == ["node 2: GPU 6-7 idle"]


def test_an_engine_on_several_cards_has_them_on_one_node() -> None:
    planned = plan_for(
        TEN, "4x8xH100-80GB", NO_RANKS, "serve.replicas=4", "serve.tensor_parallel=3"
    )
    assert rows(planned)[:2] == [
        "serve-0 to serve-1 @ node 1 (role=serve): GPU 0-5",
        "serve-2 to serve-3 @ node 2 (role=serve): GPU 0-5",
    ]
    assert "node 1: GPU 6-7 idle" in planned.notes


def test_roles_on_cpu_cores_take_no_cards() -> None:
    planned = plan_for(
        TWO, "2x1xH100-80GB", "devices.serve=0", "devices.train=0", "serve.engine='llama'",
        "model={path='x'}", 'cluster.judge_on="cpu"', "serve.replicas=1",
    )  # fmt: skip
    assert rows(planned) == ["judge-0 to judge-7 @ node 1 (role=judge): cpu"]
    assert idle(planned) == ["node 1: GPU 0 idle"]


def test_judges_without_room_are_a_warning_and_engines_without_room_are_refused():
    planned = plan_for(TWO, "2x8xH100-80GB", "cluster.judges=12")
    assert any(note.startswith("8 of 12 judges (1 GPU each, ") for note in planned.notes)
    with pytest.raises(MachineError, match=r"16 of 32 engines \(1 GPU each, labelled role=serve\)"):
        plan_for(TEN, "3x8xH100-80GB", NO_RANKS)
    with pytest.raises(MachineError, match=r"0 of 16 judges .* more nodes, or fewer judges"):
        plan_for(TEN, "5x8xH100-80GB", NO_RANKS)


def test_memory_of_nodes_is_checked_as_at_home():
    with pytest.raises(MachineError, match=r"node 1: qwen3-8b-ten-nodes: GPU 0 \(Small\) needs"):
        plan_for(TEN, "7x8xSmall-16GB", NO_RANKS, "devices.train=0", "devices.gpus=[]")


def test_an_experiment_without_a_cluster_uses_the_first_machine():
    planned = plan_for(RECIPES.parents[1] / "experiments" / "qwen3-8b-full.toml", "3x8xH100-80GB")
    assert "without [cluster] only the first of 3 machines is used" in planned.notes
    assert idle(planned) == [f"node {k}: GPU 0-7 idle" for k in (1, 2)]


def test_without_assumed_nodes_the_cluster_has_a_row_for_each_role(capsys: Any) -> None:
    assert cli.run_command(["plan", str(TWO), "--assume", "8xH100-80GB", "--json"]) == 0
    (judges,) = json.loads(capsys.readouterr().out)["elsewhere"]
    assert judges["name"] == "8 judges"
    assert "role=judge" in judges["device"]


def test_numbers_are_listed_as_ranges() -> None:
    assert [spans(each) for each in [(), (3,), (0, 1, 2, 5), (1, 3)]] == [
        "", "3", "0-2, 5", "1, 3",
    ]  # fmt: skip


def test_judges_and_engines_share_the_cards_of_a_node():
    small = (
        "serve.slots=8", "serve.context_tokens=8192", "rollout.max_completion_tokens=2048",
    )  # fmt: skip
    sharing = (
        *small,
        "serve.replicas=4",
        "cluster.judges=4",
        "cluster.train_nodes=1",
        "devices.train=4",
    )
    labels = [f'cluster.{role}_labels={{ role = "x" }}' for role in ("serve", "judge", "train")]
    apart = plan_for(TEN, "3x8xH200-141GB", *sharing, *labels)
    assert rows(apart) == [
        "trainer @ node 1 (role=x): GPU 0-3", "serve-0 to serve-3 @ node 1 (role=x): GPU 4-7",
        "judge-0 to judge-3 @ node 2 (role=x): GPU 0-3",
    ]  # fmt: skip
    shared = plan_for(TEN, "2x8xH200-141GB", *sharing, *labels, "cluster.share_gpus=true")
    assert rows(shared)[1:] == [
        "serve-0 to serve-3 @ node 1 (role=x): GPU 4-5",
        "judge-0 to judge-3 @ node 1 (role=x): GPU 6-7",
    ]
    few = (*sharing, "serve.replicas=3", "cluster.judges=1", "cluster.share_gpus=true")
    odd = plan_for(TEN, "2x8xH200-141GB", *few, *labels)
    assert rows(odd)[1:] == [
        "serve-0 to serve-2 @ node 1 (role=x): GPU 4-5", "judge-0 @ node 1 (role=x): GPU 5",
    ]  # fmt: skip
    assert idle(odd) == ["node 1: GPU 6-7 idle"]
