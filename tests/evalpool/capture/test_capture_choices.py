"""Autotuners and benchmarks of a candidate become choices, and an answer fixes the winner."""

from __future__ import annotations

from forge.evalpool.judge.program.format import Choice, Launch
from tests.evalpool.capture.capturing import (
    HEADER,
    SCALE,
    captured,
    choices,
    launches,
    launches_in,
    uses,
)

TUNED = (
    HEADER
    + """
def prune(configs, nargs, **kwargs):
    return [one for one in configs if one.kwargs["BLOCK"] <= nargs["n"]]

@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w) for b, w in [(16, 1), (32, 2), (64, 4), (128, 4)]],
    key=["n"], restore_value=["y"], prune_configs_by={"early_config_prune": prune})
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.static_assert(BLOCK != 32)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        for _ in range(2):
            add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
"""
)


def test_each_pruned_configuration_that_compiles_is_an_alternative(tmp_path):
    program = captured(tmp_path, TUNED, inputs=[[100]])
    assert [type(node) for node in program.forward[1:]] == [Choice, Launch]
    (choice,) = choices(program)
    made = [node for one in choice.alternatives for node in launches_in(one.nodes)]
    assert [node.grid[0] for node in made] == [7, 2]
    assert "BLOCK: 64" in choice.alternatives[1].label
    assert [program.kernels[node.kernel].options.num_warps for node in made] == [1, 4]
    assert choice.alternatives[0].restored == (uses(made[0])[1],)
    assert program.stateful == ""


def test_an_answer_launches_the_winner_alone(tmp_path):
    (choice,) = choices(captured(tmp_path, TUNED, inputs=[[100]]))
    for answer in (1, choice.alternatives[1].label):
        program = captured(tmp_path, TUNED, inputs=[[100]], choices={choice.key: answer})
        assert [one.grid for one in launches(program)] == [(2, 1, 1), (2, 1, 1)]
        assert not any(isinstance(node, Choice) for node in program.forward)


def test_a_configurations_hook_belongs_to_its_alternative(tmp_path):
    code = TUNED.replace('"BLOCK": b}', '"BLOCK": b}, pre_hook=lambda args: args["y"].zero_()')
    (choice,) = choices(captured(tmp_path, code, inputs=[[64]]))
    assert [[type(node).__name__ for node in one.nodes] for one in choice.alternatives] == [
        ["Op", "Launch"], ["Op", "Launch"],
    ]  # fmt: skip


BENCHED = SCALE + (
    "from triton.testing import do_bench\n"
    "@triton.jit\n"
    "def slow(x, y, n, factor, BLOCK: tl.constexpr):\n"
    "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "    tl.store(y + i, factor * tl.load(x + i, mask=i < n), mask=i < n)\n"
    "class ModelNew(torch.nn.Module):\n"
    "    best = None\n"
    "    def forward(self, x):\n"
    "        y = torch.empty_like(x)\n"
    "        call = lambda k: k[(1,)](x, y, x.numel(), 2.0, BLOCK=64)\n"
    "        if self.best is None:\n"
    "            times = {k: do_bench(lambda: call(k)) for k in (scale, slow)}\n"
    "            self.best = min(times, key=times.get)\n"
    "        call(self.best)\n"
    "        return y\n"
)


def test_hand_made_benchmarks_are_a_choice_that_can_be_answered(tmp_path):
    program = captured(tmp_path, BENCHED, inputs=[[64]])
    choice, launch = program.forward
    assert isinstance(choice, Choice)
    assert isinstance(launch, Launch)
    assert program.kernels[launch.kernel].name == "scale"
    made = [node for one in choice.alternatives for node in launches_in(one.nodes)]
    names = [program.kernels[one.kernel].name for one in made]
    assert names == ["scale", "slow"]
    again = captured(tmp_path, BENCHED, inputs=[[64]], choices={choice.key: 1})
    (launch,) = again.forward
    assert isinstance(launch, Launch)
    assert again.kernels[launch.kernel].name == "slow"


def test_a_choice_that_a_candidate_remembers_is_kept(tmp_path):
    code = TUNED.replace("    def forward", "    best = None\n    def forward").replace(
        "        for _ in range(2):\n            add[lambda meta: (triton.cdiv(x.numel(),"
        ' meta["BLOCK"]),)](x, y, x.numel())\n',
        "        if self.best is None:\n"
        '            add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())\n'
        "            self.best = add.best_config\n"
        "        else:\n"
        "            add.fn.fn[(7,)](x, y, x.numel(), EVEN=False, **self.best.all_kwargs())\n",
    )
    program = captured(tmp_path, code, inputs=[[100]])
    assert [type(node).__name__ for node in program.forward] == ["Choice", "Op", "Launch"]
    choice = program.forward[0]
    assert isinstance(choice, Choice)
    answered = captured(tmp_path, code, inputs=[[100]], choices={choice.key: 1})
    (launch,) = launches(answered)
    assert answered.kernels[launch.kernel].options.num_warps == 4
