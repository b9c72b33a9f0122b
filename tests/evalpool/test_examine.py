"""Findings of an examination: each flag on a problem that earns it, none on honest ones."""

from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from forge.config.schema import JudgeTable, ProblemsTable
from forge.data.problems import load_problems
from forge.evalpool.capacity import seat_cores
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.trial import examiner
from forge.evalpool.judge.trial.examiner import Examiners
from forge.evalpool.pool import examine_all
from forge.records.examination import Examination, Flag
from forge.records.problem import Problem, ReferenceModule, Split

TABLE = JudgeTable(compile_timeout_s=1.0, correct_timeout_s=1.0, memory_bytes=1 << 30)
HEAD = "import os, time, torch\nimport torch.nn as nn\n"


def make_source(
    forward: str,
    *,
    args: str = "x",
    inputs: str = "torch.randn(16, 64)",
    init: str = "pass",
    top: str = "",
) -> str:
    return f"""{HEAD}{top}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {args}):
        return {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


@pytest.fixture(scope="session")
def examine(bench: Any) -> Callable[[str], Examination]:
    examiners = Examiners(bench.spawner, table=TABLE)

    def examine(source: str) -> Examination:
        problem = Problem(problem_id="p", source=source, family="", level=1, split=Split.GRPO)
        return examiners.examine(problem)

    return examine


FORGERY = """
for fd in range(3, 64):
    try:
        os.write(fd, b"x" * 99)
    except OSError:
        pass
"""

SPIN = """
def spin():
    end = time.process_time() + 0.15
    while time.process_time() < end: pass
"""
HONEST = {
    "relu": make_source("torch.relu(x) * 2"),
    "linear": make_source("torch.relu(self.a(x))", init="self.a = nn.Linear(64, 8)"),
    "softmax": make_source("torch.softmax(x, dim=-1)"),
    "two inputs": make_source("x @ y", args="x, y", inputs="torch.rand(8, 64), torch.rand(64, 4)"),
    "an index": make_source("x[i]", args="x, i", inputs="torch.randn(9, 64), torch.randperm(9)"),
    "a mask": make_source(
        "torch.where(m, x, 0.0)", args="x, m", inputs="torch.randn(99), torch.rand(99) > 0.5"
    ),
    "a constant that is drawn at import": make_source("x * N", top="N = torch.randn(64)"),
    "a seeded number": make_source(
        "x * self.n", init="torch.manual_seed(0); self.n = torch.rand(1).item()"
    ),
    "a tensor that is drawn": make_source("x * self.h", init="self.h = torch.randn(64)"),
    "an argmax": make_source("torch.argmax(x, dim=-1)"),
    "a product in half precision": make_source(
        "(x @ x.T).float()", inputs="torch.randn(16, 64).bfloat16()"
    ),
    "a scalar argument": make_source("x * n", args="x, n", inputs="torch.randn(9), 3"),
    "an integer that cannot vary": make_source(
        "x * k", args="x, k", inputs="torch.randn(9), torch.tensor(3)"
    ),
    "an output of another size each time": make_source("x[x > 0]"),
    "a batch norm": make_source("self.n(x)", init="self.n = nn.BatchNorm1d(64)"),
    "in place": make_source("x.mul_(2).add_(1)"),
    "a list of tensors": make_source(
        "xs[0] + 2 * xs[1]", args="xs", inputs="[torch.randn(9), torch.randn(9)]"
    ),
}

FLAGGED = {
    "zeros": (make_source("x - x"), Flag.CONSTANT, "one answer passes"),
    "a mean that vanishes": (
        make_source("torch.softmax(x.sum(dim=1, keepdim=True), dim=1)"), Flag.CONSTANT, ""
    ),
    "identity": (make_source("x + 0"), Flag.IDENTITY, "the output is input 0"),
    "a reshape": (make_source("x.reshape(64, 16) * 1.0"), Flag.IDENTITY, "input 0"),
    "ignored input": (
        make_source("torch.relu(x)", args="x, y", inputs="torch.randn(9), torch.randn(9)"),
        Flag.INPUT_INSENSITIVE, "input 1 does not matter",
    ),
    "ignored parameter": (
        make_source(
            "self.n(self.a(x))", init="self.a = nn.Linear(64, 64); self.n = nn.BatchNorm1d(64)"
        ),
        Flag.VECTOR_INSENSITIVE, "a.bias does not matter",
    ),
    "ignored weight": (
        make_source("x + self.b", init="self.a = nn.Linear(64, 64); self.b = self.a.bias"),
        Flag.PARAMETER_INSENSITIVE, "a.weight does not matter",
    ),
    "no weight that matters": (
        make_source("x * 2", init="self.b = nn.Parameter(torch.ones(64))"),
        Flag.PARAMETER_INSENSITIVE, "b does not matter",
    ),
    "dropout": (
        make_source("self.d(x)", init="self.d = nn.Dropout(0.5)"), Flag.NONDETERMINISTIC, ""
    ),
    "noise": (make_source("x + torch.rand_like(x)"), Flag.NONDETERMINISTIC, "two runs"),
    "NaN": (make_source("torch.log(x)"), Flag.NON_FINITE, "of the output is NaN"),
    "cancellation": (
        make_source("(x + 1e6) - 1e6 - x"), Flag.ILL_CONDITIONED, "tolerances from float64"
    ),
    "raises": (make_source("x @ x"), Flag.DOES_NOT_RUN, "line 9: RuntimeError"),
    "no such name": (make_source("x", top="nothing_here"), Flag.DOES_NOT_RUN, "NameError"),
    "syntax": (HEAD + "def (", Flag.DOES_NOT_RUN, "line 3: SyntaxError"),
    "no get_inputs": (HEAD + "class Model(nn.Module): pass", Flag.DOES_NOT_RUN, "get_in"),
    "a dict": (make_source("{'a': x}"), Flag.UNSUPPORTED, "returns a dict"),
    "complex": (make_source("torch.fft.fft(x)"), Flag.UNSUPPORTED, "complex64"),
    "a number that is drawn": (
        make_source("x * self.n", init="self.n = torch.rand(1).item()"),
        Flag.UNSUPPORTED, "the constructor draws random numbers",
    ),
    "a device": (make_source("x.cuda()"), Flag.UNSUPPORTED, "asks for a GPU, and this judge"),
    "an object": (make_source("x", args="x, y", inputs="1, object()"), Flag.UNSUPPORTED, "object"),
    "too large": (
        make_source("x", inputs="torch.empty(1 << 40)"), Flag.OUT_OF_MEMORY, "does not fit"
    ),
    "over the cap": (
        make_source("x[:1] * 2", inputs="torch.empty(150_000_000)"), Flag.OUT_OF_MEMORY, ""
    ),
    "a memory bomb": (
        make_source("x", top="a = []\nwhile True: a.append(bytes(1 << 26))"),
        Flag.OUT_OF_MEMORY, "",
    ),
    "an exit": (make_source("os._exit(3)"), Flag.CRASH, "exit 3"),
    "a clean exit": (make_source("x", top="raise SystemExit"), Flag.DOES_NOT_RUN, "SystemExit"),
    "a loop": (make_source("x", top="while True: pass"), Flag.SLOW, "loading does not end"),
    "a slow forward": (make_source("time.sleep(60)"), Flag.SLOW, "does not end within 2 s"),
    "slow for a judge": (make_source("(spin(), x * 2)[1]", top=SPIN), Flag.SLOW, "a judge waits"),
    "a forged frame": (make_source("x", top=FORGERY), Flag.CRASH, "wrote on its channel"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_problem_has_no_flag(examine: Callable[[str], Examination], name: str) -> None:
    found = examine(HONEST[name])
    assert found.flags == {}
    assert found.is_trainable
    assert found.outputs
    assert found.forward_s is not None
    assert found.num_unchecked == 0


@pytest.mark.parametrize("name", FLAGGED)
def test_each_fault_has_its_flag_and_says_what_it_is(
    examine: Callable[[str], Examination], name: str
) -> None:
    source, flag, words = FLAGGED[name]
    found = examine(source)
    assert flag in found.flags, found
    assert words in found.flags[flag]
    assert found.is_trainable == (flag in (Flag.NON_FINITE, Flag.VECTOR_INSENSITIVE))
    assert found.is_usable == (flag.is_trivial or found.is_trainable)


def test_no_generated_problem_is_flagged(examine: Callable[[str], Examination]) -> None:
    problems = load_problems(
        ProblemsTable(num_problems=64, num_heldout=24, sft_by_level=[5]), seed=3
    )
    for problem in problems[::4]:
        assert examine(problem.source).flags == {}, problem.source


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "1", True, None])
def test_a_number_that_is_none_is_left_out(value: object) -> None:
    report = examiner._Report()
    report.add({"step": "run", "flags": {}, "facts": {"forward_s": value, "num_unchecked": value}})
    assert report.facts.get("forward_s") in (None, 1.0)
    assert report.num_unchecked == 0


def test_a_study_that_does_not_come_to_an_end_is_cut() -> None:
    report = examiner._Report()
    body: dict[str, Any] = {"step": "run", "flags": {}, "facts": {}}
    for _ in range(examiner.MAX_STEPS):
        report.add(body)
    with pytest.raises(frames.FrameError):
        report.add(body)


PROBLEMS = [ReferenceModule(problem_id=f"p{number}", source="") for number in range(9)]


class Card:
    """A pool on one card: some problems fail if another one is examined beside them."""

    def __init__(self, *, num_judges: int = 1, num_examined: int = 4) -> None:
        self.num_judges, self.num_examined = num_judges, num_examined
        self.asked: list[str] = []
        self.num_running = self.most = 0

    async def examine(self, problem: ReferenceModule) -> Examination:
        name = problem.problem_id
        self.asked.append(name)
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        await anyio.sleep(0.001)
        is_shared = self.num_running > 1
        self.num_running -= 1
        flags = {"p1": Flag.OUT_OF_MEMORY, "p2": Flag.SLOW} if is_shared else {}
        flag = flags.get(name) or {"p3": Flag.SLOW, "p4": Flag.CONSTANT}.get(name)
        return Examination(problem_id=name, flags={flag: "why"} if flag else {})


async def test_problems_share_a_card_and_doubtful_ones_are_examined_again_alone() -> None:
    card, done = Card(), list[int]()
    found = await examine_all(cast(Any, card), PROBLEMS, done=lambda: done.append(1))
    assert [each.problem_id for each in found] == [one.problem_id for one in PROBLEMS]
    assert {each.problem_id: list(each.flags) for each in found if each.flags} == {
        "p3": [Flag.SLOW], "p4": [Flag.CONSTANT],
    }  # fmt: skip
    assert (card.most, len(done)) == (4, len(PROBLEMS))
    assert card.asked[len(PROBLEMS) :] == ["p1", "p2", "p3"]


@pytest.mark.parametrize(
    ("num_cores", "num_seats", "expected"),
    [
        (2, 2, [(0,), (1,)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (2, 3, [(0,), (1,), (0,)]),
        (3, 2, [(0,), (1,)]),
    ],
)
def test_judges_share_the_cores(
    num_cores: int, num_seats: int, expected: list[tuple[int, ...]]
) -> None:
    cores = range(num_cores)
    found = [seat_cores(cores, seat=seat, num_seats=num_seats) for seat in range(num_seats)]
    assert found == expected
