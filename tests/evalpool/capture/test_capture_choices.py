"""Autotuners of a candidate become choices, and an answer fixes the winner."""

from forge.evalpool.judge.program.format import Choice, Launch
from tests.evalpool.capture.capturing import HEADER, captured, choices, launches, launches_in, uses

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
    answer = {choice.key: choice.alternatives[1].label}
    program = captured(tmp_path, TUNED, inputs=[[100]], choices=answer)
    assert [one.grid for one in launches(program)] == [(2, 1, 1), (2, 1, 1)]
    assert not any(isinstance(node, Choice) for node in program.forward)


def test_a_configurations_hook_belongs_to_its_alternative(tmp_path):
    code = TUNED.replace('"BLOCK": b}', '"BLOCK": b}, pre_hook=lambda args: args["y"].zero_()')
    (choice,) = choices(captured(tmp_path, code, inputs=[[64]]))
    assert [[type(node).__name__ for node in one.nodes] for one in choice.alternatives] == [
        ["Op", "Launch"], ["Op", "Launch"],
    ]  # fmt: skip


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
    answered = captured(
        tmp_path, code, inputs=[[100]], choices={choice.key: choice.alternatives[1].label}
    )
    (launch,) = launches(answered)
    assert answered.kernels[launch.kernel].options.num_warps == 4
