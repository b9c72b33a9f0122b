"""Some oracles draw for several problems, some for one alone, and no problem notices: a reference
shares one if it leaves its process as it was."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.children import spawner
from forge.evalpool.judge.children.spawner import Ending, SandboxedChild, ZygoteGone
from forge.evalpool.judge.sandbox.enter import Isolation
from forge.evalpool.judge.trial.draws import parse_specs
from forge.evalpool.judge.trial.references import Oracles, OutOfMemory, is_contained
from tests.evalpool.benches import DRAWN, RELU, make_problem

CONTAINED = make_problem(RELU)
OPEN = make_problem(RELU + "torch.set_num_threads(1)\n")
WAIT_S = 30.0


class Zygote:
    """Forks oracles that say nothing, until it is replaced."""

    def __init__(self) -> None:
        self.isolation = Isolation.NAMESPACES
        self.generation = 0
        self.is_out_of_memory = False
        self.living: dict[int, socket.socket] = {}
        self.ours: list[socket.socket] = []

    def spawn(self, *, role: str, source: str) -> SandboxedChild:
        assert (role, bool(source)) == ("oracle", True)
        ours, theirs = socket.socketpair()
        self.ours.append(ours)
        self.living[len(self.ours)] = theirs
        return SandboxedChild(sock=ours, pid=len(self.ours), generation=self.generation)

    def is_current(self, child: SandboxedChild) -> bool:
        return child.generation == self.generation

    def end(self, child: SandboxedChild) -> int:
        child.sock.close()
        self.living.pop(child.pid).close()
        return 0

    def ended(self, child: SandboxedChild) -> Ending:
        self.end(child)
        if not self.is_current(child):
            raise ZygoteGone("a child ended with its zygote")
        return Ending(status=0, was_running=False, is_out_of_memory=self.is_out_of_memory)

    def close(self) -> None:
        for one in (*self.ours, *self.living.values()):
            one.close()


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def opened(zygote: Zygote, *, num_kept: int = 2) -> Oracles:
    spawner: Any = zygote
    return Oracles(spawner, num_kept=num_kept)


def drawn(made: Oracles, problem: Any = CONTAINED) -> int:
    with made.lent(problem) as child:
        return child.pid


def test_one_draws_for_many_and_who_may_leave_something_has_its_own(zygote: Zygote) -> None:
    made = opened(zygote)
    assert [drawn(made), drawn(made), drawn(made, OPEN), drawn(made)] == [1, 1, 2, 1]
    assert list(zygote.living) == [1]
    made.close()
    assert not zygote.living


def test_one_whose_draw_failed_draws_no_more(zygote: Zygote) -> None:
    made = opened(zygote)
    for problem in (CONTAINED, OPEN):
        with pytest.raises(ValueError, match="of the draw"), made.lent(problem):
            raise ValueError("of the draw")
        assert not zygote.living
    assert drawn(made) == 3


def test_one_that_died_or_lost_its_zygote_is_not_lent(zygote: Zygote) -> None:
    made = opened(zygote)
    drawn(made)
    zygote.living[1].shutdown(socket.SHUT_RDWR)
    assert drawn(made) == 2
    zygote.generation += 1
    assert drawn(made) == 3
    assert list(zygote.living) == [3]


def test_one_ends_after_its_last_draw(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner, "MAX_SERVED", 3)
    made = opened(zygote)
    assert [drawn(made) for _ in range(7)] == [1, 1, 1, 2, 2, 2, 3]


def test_without_a_sandbox_none_is_kept(zygote: Zygote) -> None:
    zygote.isolation = Isolation.NONE
    made = opened(zygote)
    assert [drawn(made), drawn(made)] == [1, 2]
    assert not zygote.living


@pytest.mark.parametrize("ends_well", [True, False])
def test_who_finds_all_at_work_waits_for_one(zygote: Zygote, ends_well: bool) -> None:
    made = opened(zygote, num_kept=1)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(drawn(made)))
    with contextlib.suppress(RuntimeError), made.lent(CONTAINED):
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        assert drawn(made, OPEN) == 2, "who needs its own does not wait"
        if not ends_well:
            raise RuntimeError
    waiting.join(WAIT_S)
    assert got == [1 if ends_well else 3]


@pytest.mark.parametrize("problem", [CONTAINED, OPEN])
def test_a_draw_is_done_also_where_the_zygote_goes_behind_it(
    problem: Any, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(child: SandboxedChild) -> int:
        raise ZygoteGone("gone")

    monkeypatch.setattr(spawner, "MAX_SERVED", 1)
    monkeypatch.setattr(zygote, "end", fail)
    made = opened(zygote)
    assert drawn(made, problem) == 1
    with pytest.raises(ZygoteGone), made.lent(problem):
        raise ValueError("whose fault it was nobody knows")


@pytest.mark.parametrize("problem", [CONTAINED, OPEN])
def test_who_draws_while_the_zygote_is_replaced_is_not_to_blame(
    problem: Any, zygote: Zygote
) -> None:
    def fail() -> None:
        zygote.generation += 1
        raise frames.PeerGone("closed")

    with pytest.raises(ZygoteGone), opened(zygote).lent(problem):
        fail()


def test_an_oracle_that_its_memory_limit_killed_is_reported_as_such(zygote: Zygote) -> None:
    zygote.is_out_of_memory = True
    with pytest.raises(OutOfMemory), opened(zygote).lent(OPEN):
        raise frames.PeerGone("closed")


def ask(child: SandboxedChild, source: str) -> dict[str, Any]:
    """The layout that a real oracle makes for a problem, up to the end of its draw."""
    body = {**DRAWN, "source": source}
    deadline = time.monotonic() + WAIT_S
    with shared_memory(body["max_bytes"]) as (fd, memory):
        frames.send(child.sock, Kind.PROBLEM, body, fds=(fd,))
        expected = (Kind.LAYOUT, Kind.FAILED)
        answer = frames.receive(child.sock, deadline=deadline, expected=expected)
        if answer.kind is Kind.FAILED:
            return answer.body
        specs, starts = parse_specs(answer.body["tensors"]), answer.body["starts"]
        pairs = zip(starts, specs, strict=True)
        return {**answer.body, "data": [memory[at : at + one.num_bytes] for at, one in pairs]}


def forms_in(answer: dict[str, Any]) -> set[str]:
    """Types and shapes."""
    return {str(form) for form in answer["tensors"]}


def test_an_oracle_draws_one_problem_after_another(bench: Any) -> None:
    """New contents each time, nothing of the one before, and it ends with the first that fails."""
    child = bench.spawner.spawn(role="oracle")
    try:
        first, second = ask(child, RELU), ask(child, RELU)
        assert forms_in(first) == forms_in(second)
        assert first["data"] != second["data"]
        other = ask(child, RELU.replace("16, 64", "8, 32"))
        assert [8, 32] in [shape for _, shape in other["tensors"]]
        assert "16" not in str(other["tensors"])
        assert ask(child, RELU.replace("torch.relu(x)", "1 / 0"))["type"] == "ZeroDivisionError"
        with pytest.raises(frames.PeerGone):
            ask(child, RELU)
    finally:
        bench.spawner.end(child)


def test_constants_drawn_at_import_are_the_same_in_each_draw(bench: Any) -> None:
    """A candidate that draws them as the source does gets them too."""
    source = RELU.replace("class Model", "SHIFT = torch.rand(3)\nclass Model").replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('shift', SHIFT)\n    def forward",
    )
    assert is_contained(make_problem(source))
    child = bench.spawner.spawn(role="oracle")
    found: list[bytes] = []
    try:
        for _ in range(2):
            body = ask(child, source)
            ((_, index),) = body["state"]
            found.append(body["data"][index])
    finally:
        bench.spawner.end(child)
    assert found[0] == found[1]


def test_nothing_of_a_problem_stays_in_its_oracle(bench: Any) -> None:
    source = RELU.replace(
        "class Model",
        "from typing import Optional\nKEPT = torch.ones(77)\nclass Block:\n    def run(self):\n"
        "        return KEPT\nBlocks = Optional[Block]\nclass Model",
    )
    assert is_contained(make_problem(source))
    tensors = "[tuple(o.shape) for o in gc.get_objects() if isinstance(o, torch.Tensor)]"
    child = bench.spawner.spawn(role="oracle")
    try:
        assert "tensors" in ask(child, source)
        left = ask(child, f"import gc, torch\nraise ValueError({tensors})")
    finally:
        bench.spawner.end(child)
    assert left["message"] == "[]"


LEAVES = (
    "torch.relu = torch.sigmoid",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
    "torch.backends.cudnn.benchmark = True",
    "torch.cuda.set_device(0)",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.nn.Module.forward = None",
    "torch.nn.modules.module.register_module_forward_hook(print)",
    "torch.Tensor.__add__ = None",
    "setattr(torch, 're' + 'lu', None)",
    "import os; os.environ['X'] = '1'",
    "import random; random.seed(0)",
    "exec('import os')",
    "def f():\n    global __builtins__\n    __builtins__ = {}",
    "torch.use_deterministic_algorithms(True)",
    "torch.compile(torch.relu)",
    "(",
    "L = torch.nn.Linear\nL.forward = None",
    "for layer in (torch.nn.Linear, torch.nn.Conv2d):\n    layer.reset_parameters = None",
    "def skip(layer):\n    layer.reset_parameters = None\nskip(torch.nn.Linear)",
    "def skip(layer):\n    setattr(layer, 'forward', None)\nskip(torch.nn.Linear)",
    "def skip(layer):\n    del layer.forward\nskip(torch.nn.Linear)",
    "getattr(torch.nn, 'Linear').forward = None",
    "self = torch.nn.Linear\nself.forward = None",
    "getattr(torch, '\\x73et_num_threads')(1)",
    "torch.ｓet_num_threads(1)",
    "torch.autocast_increment_nesting()",
    "torch.nn.attention.activate_flash_attention_impl('FA4')",
    "import triton",
    "put = setattr\nput(torch, 'relu', None)",
    "list(map(setattr, [torch], ['relu'], [None]))",
    "getattr(torch, '__dict__')['relu'] = None",
    "def held():\n    with torch.inference_mode():\n        yield\nHELD = held()\nnext(HELD)",
)


@pytest.mark.parametrize("line", LEAVES)
def test_what_may_outlive_a_draw_is_seen(line: str) -> None:
    assert not is_contained(make_problem(f"{RELU}\n{line}\n"))
    assert not is_contained(make_problem(f"import torch\n{line}\n{RELU}"))
    made = "def get_inputs():\n    " + line.replace("\n", "\n    ")
    assert not is_contained(make_problem(RELU.replace("def get_inputs():", made)))


def test_problems_of_our_own_are_contained() -> None:
    table = ProblemsTable(num_problems=100, sft_by_level=[10, 10, 10, 10])
    assert all(is_contained(problem) for problem in generate_problems(table, seed=0))


def test_buffers_modules_and_state_of_ones_own_are_nobodys_business() -> None:
    source = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 64

class Model(nn.Module):
    def __init__(self, dim):
        super(Model, self).__init__()
        self.dim = dim  # named alone: torch.set_num_threads
        self.linear = nn.Linear(dim, dim)
        self.register_buffer("scale", torch.ones(dim) / math.sqrt(dim))
        self.linear.weight.data.mul_(2)

    def forward(self, x):
        x = x.clone()
        x[:, 0] = 0
        return F.gelu(torch.clamp(self.linear(x), min=0) * self.scale)

def get_inputs():
    torch.manual_seed(3)
    return [torch.rand(4, SIZE)]

def get_init_inputs():
    return [SIZE]
"""
    assert is_contained(make_problem(source))
