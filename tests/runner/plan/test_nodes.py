"""Plans for several machines: roles of `[cluster]` on assumed nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from forge import cli
from forge.config.load import load_experiment
from forge.errors import MachineError
from forge.runner.plan.machine import assume, this_machine
from forge.runner.plan.plan import Plan, plan
from forge.runner.plan.view import render, spans

RECIPES = Path(__file__).parents[3] / "examples" / "cluster"
TWO, TEN = RECIPES / "train-and-judge.toml", RECIPES / "ten-nodes.toml"
NO_RANKS = "cluster.train_nodes=0"


def plan_for(file: Path, machines: str, *overrides: str) -> Plan:
    experiment = load_experiment(file, overrides=overrides, is_here=False)
    return plan(experiment, machine=assume(machines, here=this_machine(Path())))


def roles(planned: Plan) -> list[dict[str, int]]:
    """Children by role, of each node."""
    return [{each.role: each.count for each in node.roles} for node in planned.nodes]


def shown(planned: Plan) -> str:
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render(planned))
    return captured.get()


def test_one_node_trains_and_one_judges():
    planned = plan_for(TWO, "2x8xH100-80GB")
    assert roles(planned) == [{"serve": 4, "train": 1}, {"judge": 8}]
    assert [node.labels for node in planned.nodes] == [{}, {"role": "judge"}]
    assert [node.idle for node in planned.nodes] == [(), ()]
    assert "node 1  role=judge  8 x H100  judge-0 to judge-7 on GPU 0-7" in shown(planned)


def test_four_nodes_train_four_generate_and_two_judge():
    planned = plan_for(TEN, "10x8xH100-80GB")
    assert roles(planned) == [*[{"train": 1}] * 4, *[{"serve": 8}] * 4, *[{"judge": 8}] * 2]
    ranks = [node.roles[0] for node in planned.nodes[:4]]
    assert len({each.bytes_each for each in ranks}) == 1
    assert [each.gpus for each in ranks] == [tuple(range(8))] * 4
    assert all(not node.idle for node in planned.nodes)


def test_a_node_takes_one_part_of_the_trainer_and_all_parts_are_needed():
    with pytest.raises(MachineError, match=r"2 of 3 nodes for ranks \(8 GPUs each, labelled role"):
        plan_for(TEN, "3x8xH100-80GB")
    planned = plan_for(TEN, "10x8xH100-80GB", "devices.train=4")
    assert [node.roles[0].gpus for node in planned.nodes[:4]] == [(0, 1, 2, 3)] * 4
    assert [node.idle for node in planned.nodes[1:4]] == [(4, 5, 6, 7)] * 3


def test_engines_and_judges_have_nodes_of_their_own_labels():
    planned = plan_for(TEN, "8x8xH100-80GB", NO_RANKS)
    assert roles(planned) == [{"train": 1}, *[{"serve": 8}] * 4, *[{"judge": 8}] * 2, {}]
    assert [node.roles[0].first for node in planned.nodes[1:-1]] == [0, 8, 16, 24, 0, 8]
    assert planned.nodes[-1].idle == tuple(range(8))
    memory = {each.role: each.bytes_each for node in planned.nodes for each in node.roles}
    assert all(size and size < 80 << 30 for size in memory.values())
    text = shown(planned)
    assert "serve-24 to serve-31 on GPU 0-7" in text
    assert text.count("0-7") == 8, "the idle node's cards are listed too"


def test_roles_without_labels_share_a_node():
    planned = plan_for(
        TEN, "3x8xH100-80GB", NO_RANKS, "serve.replicas=10", "cluster.judges=4",
        "cluster.serve_labels={}", "cluster.judge_labels={}",
    )  # fmt: skip
    assert roles(planned)[1:] == [{"serve": 8}, {"serve": 2, "judge": 4}]
    assert planned.nodes[2].roles[1].gpus == (2, 3, 4, 5)
    assert planned.nodes[2].idle == (6, 7)
    assert "GPU 2-5" in shown(planned)
    assert "6-7" in shown(planned)


def test_an_engine_on_several_cards_has_them_on_one_node():
    planned = plan_for(
        TEN, "4x8xH100-80GB", NO_RANKS, "serve.replicas=4", "serve.tensor_parallel=3"
    )
    assert roles(planned)[1:3] == [{"serve": 2}, {"serve": 2}]
    assert planned.nodes[1].idle == (6, 7)


def test_roles_on_cpu_cores_take_no_cards():
    planned = plan_for(
        TWO, "2x1xH100-80GB", "devices.serve=0", "devices.train=0", "serve.engine='llama'",
        "model={path='x'}", 'cluster.judge_on="cpu"', "serve.replicas=1",
    )  # fmt: skip
    (judges,) = planned.nodes[1].roles
    assert (judges.count, judges.gpus, judges.bytes_each) == (8, (), None)
    assert planned.nodes[1].idle == (0,)
    assert "judge-0 to judge-7 on the CPU" in shown(planned)


def test_judges_without_room_are_a_warning_and_engines_without_room_are_refused():
    planned = plan_for(TWO, "2x8xH100-80GB", "cluster.judges=12")
    assert planned.notes[-1] == (
        "8 of 12 judges (1 GPU each, labelled role=judge) have room on the 1 node beside the head "
        "of 2x8xH100-80GB; the others start when a node joins"
    )
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
    assert [len(node.idle) for node in planned.nodes[1:]] == [8, 8]


def test_the_json_of_a_plan_has_the_nodes(capsys):
    assert cli.run_command(["plan", str(TWO), "--assume", "2x8xH100-80GB", "--json"]) == 0
    head, node = json.loads(capsys.readouterr().out)["nodes"]
    assert (head["name"], node["name"], node["num_gpus"]) == ("head", "node 1", 8)
    assert node["roles"][0]["role"] == "judge"


def test_numbers_are_listed_as_ranges():
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
    assert [[(each.role, each.gpus) for each in node.roles] for node in apart.nodes[1:]] == [
        [("train", (0, 1, 2, 3)), ("serve", (4, 5, 6, 7))],
        [("judge", (0, 1, 2, 3))],
    ]
    shared = plan_for(TEN, "2x8xH200-141GB", *sharing, *labels, "cluster.share_gpus=true")
    assert [(each.role, each.gpus) for each in shared.nodes[1].roles] == [
        ("train", (0, 1, 2, 3)),
        ("serve", (4, 5)),
        ("judge", (6, 7)),
    ]
    assert shared.nodes[1].idle == ()
    few = (*sharing, "serve.replicas=3", "cluster.judges=1", "cluster.share_gpus=true")
    idle = plan_for(TEN, "2x8xH200-141GB", *few, *labels).nodes[1]
    assert [(each.role, each.gpus) for each in idle.roles[1:]] == [
        ("serve", (4, 5)),
        ("judge", (5,)),
    ]
    assert idle.idle == (6, 7)
