"""Something outlasts a call, the clock is aimed at, or what is captured is not what would run."""

import time
from pathlib import Path

import pytest

from forge.evalpool.judge.capture.recorder import Recorder
from tests.evalpool.attacks.attacking import LINEAR, RELU, Problem, attack
from tests.evalpool.attacks.sources import model


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what the candidates below replace: a capture's child would have ended."""
    for owner, name in ((Recorder, "__torch_dispatch__"), (time, "perf_counter")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


STATE = {
    "a result kept in a buffer": (
        """
if not self.is_done:
    self.is_done = True
    relu_kernel[(256,)](x, self.kept, x.numel(), B=256)
return copied(self.kept)
""",
        "self.is_done = False\nself.kept = torch.zeros(256, 256)",
    ),
    "a buffer of init written to by a kernel": (
        "relu_kernel[(256,)](x, self.kept, x.numel(), B=256)\nreturn copied(self.kept)",
        "self.kept = torch.zeros(256, 256)",
    ),
    "a buffer of init written to by torch": (
        "self.kept.copy_(relu(x))\nreturn copied(self.kept)",
        "self.kept = torch.zeros(256, 256)",
    ),
    "the input, through a view": (
        "y = x.view(-1)[0:65536]\nrelu_kernel[(256,)](x, y, x.numel(), B=256)\nreturn copied(x)",
        "",
    ),
    "a constant": (
        """
relu_kernel[(1,)](x, self.kept, 4, B=256)
y = relu(x)
relu_kernel[(1,)](self.kept, y, 4, B=256)
return y
""",
        "self.kept = torch.tensor([1.0, 2.0, 3.0, 4.0]).cuda()",
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_nothing_survives_a_call(tmp_path: Path, name: str) -> None:
    forward, init = STATE[name]
    found = attack(tmp_path, model(forward, init=init))
    assert found.room in ("policy", "capture"), found


def test_a_parameter_is_not_written_to(tmp_path: Path) -> None:
    code = model(
        "self.fc.bias.data.add_(1.0)\nreturn relu(x)", init="self.fc = torch.nn.Linear(128, 128)"
    )
    found = attack(tmp_path, code, LINEAR)
    assert found.room == "policy", found


POSITIONS = Problem(
    reference="return x * torch.cos(y.float())[:, None]",
    inputs=([64, 64], ("int64", [64])),
    state={},
)


def test_a_table_of_the_first_call_is_no_program(tmp_path: Path) -> None:
    """`y` may be the same in every call; what was computed from it must not be kept."""
    code = model(
        "if self.table is None:\n    self.table = relu(y.float())\nreturn copied(self.table)",
        init="self.table = None",
        arguments="x, y",
    )
    assert attack(tmp_path, code, POSITIONS).room in ("policy", "capture")


SAME = {
    "a suspended generator": (
        "def work():\n    with torch.no_grad():\n        yield relu(x)\n"
        "        relu(x)\nself.work = work()\nreturn next(self.work)"
    ),
    "the interpreter's mark": (
        "if not hasattr(tl.load, '__wrapped__'):\n    return torch.relu(x)\nreturn relu(x)"
    ),
    "the clock's mode": (
        "if torch.are_deterministic_algorithms_enabled():\n    return torch.relu(x)\nreturn relu(x)"
    ),
    "a count of calls": (
        "self.n = getattr(self, 'n', 0) + 1\nif self.n > 2:\n    return x\nreturn relu(x)"
    ),
    "a lowered number": (
        "x.numel = lambda: 0\ny = torch.empty_like(x)\n"
        "relu_kernel[(256,)](x, y, 65536, B=256)\nreturn y"
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_trick_has_no_place_in_the_program(tmp_path: Path, name: str) -> None:
    """The honest program is left: one launch, nothing else."""
    found = attack(tmp_path, model(SAME[name]))
    assert found.room == "passed", found
    assert (found.num_launches, found.ops) == (1, [])


TAMPERED = {
    "nodes are removed": (
        "import gc\ny = copied(torch.relu(x))\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'Recorder':\n"
        "        one.nodes[:] = [n for n in one.nodes if type(n).__name__ != 'Op']\nreturn y"
    ),
    "operations are renamed": (
        "import gc\ny = copied(torch.relu(x))\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'Recorder':\n"
        "        for n in one.nodes:\n"
        "            if type(n).__name__ == 'Op':\n"
        "                object.__setattr__(n, 'name', 'aten.clone.default ')\nreturn y"
    ),
    "the modes are popped": (
        "from torch.utils._python_dispatch import _pop_mode_temporarily\n"
        "with _pop_mode_temporarily():\n    y = torch.relu(x)\nreturn copied(y)"
    ),
    "the mode is replaced": (
        "import sys\n"
        "from torch.utils._python_dispatch import _get_current_dispatch_mode_stack\n"
        "for one in _get_current_dispatch_mode_stack():\n"
        "    type(one).__torch_dispatch__ = lambda s, f, t, a=(), k=None: f(*a, **(k or {}))\n"
        "return copied(torch.relu(x))"
    ),
    "an input calls itself an allocation": (
        "import gc\n"
        "for one in gc.get_objects():\n"
        "    if type(one).__name__ == 'Recorder':\n"
        "        for s in one.storages:\n"
        "            object.__setattr__(s, 'origin', type(s.origin)('allocation'))\n"
        "return relu(x)"
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_candidate_that_changes_its_capture_changes_its_program(
    tmp_path: Path, name: str
) -> None:
    found = attack(tmp_path, model(TAMPERED[name]))
    assert found.room != "passed", found


def test_other_code_than_the_screen_read_is_captured_too(tmp_path: Path) -> None:
    """A module beyond the candidate's own source, exec and importlib are no way around."""
    code = model(
        "return self.run(x)",
        init="scope = dict(globals())\n"
        "exec('def run(x):\\n    return copied(torch.relu(x))', scope)\nself.run = scope['run']",
    )
    found = attack(tmp_path, code, RELU)
    assert found.room == "policy"
    assert "relu" in found.words
