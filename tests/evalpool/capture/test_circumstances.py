"""A host that looks at what surrounds its call does the same everywhere, or is seen to do not."""

from __future__ import annotations

import pytest

from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.program.format import Launch
from tests.evalpool.capture.capturing import SCALE, request

LOOKS = {
    "a later time": "__import__('time').time() > 2.7e9",
    "a second card": "x.device.index or torch.cuda.device_count() > 1 or x.get_device()",
    "another stream": "torch.cuda.current_stream() != torch.cuda.default_stream()",
    "another thread": "threading.current_thread() is not threading.main_thread()",
    "autocast": "torch.is_autocast_enabled()",
    "deterministic algorithms": "torch.are_deterministic_algorithms_enabled()",
    "eval()": "not self.training",
    "frozen parameters": "not self.weight.requires_grad",
    "gradients": "x.requires_grad and not x.is_leaf and torch.is_grad_enabled()",
    "graph capture": "torch.cuda.is_current_stream_capturing()",
    "inference mode": "torch.is_inference_mode_enabled()",
    "views": "x._base is not None and x._version and x.storage_offset() and x.is_contiguous()",
}
EVERY = list(LOOKS)
OTHER_LOOKS = [
    ("a second card", "torch._C._cuda_getDevice()"),
    ("another stream", "torch.cuda.current_stream().stream_id"),
    ("another stream", "torch._C._cuda_getCurrentRawStream(0)"),
    ("another stream", "triton.runtime.driver.active.get_current_stream(0)"),
]
LIKE_A_PROCESS = [
    [one for one in EVERY if one not in ("eval()", "frozen parameters", "inference mode")],
    [one for one in EVERY if one != "gradients"],
]


def otherwise(folder, line, *, within=(), **more):
    """The program of a candidate with this line before its launch, and where it is another one."""
    code = f"""
import threading

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.kept = {{}}
        self.steps = torch.nn.Parameter(torch.arange(8), requires_grad=False)
        self.still = torch.nn.Dropout().eval()
    def forward(self, x):
        {line}
        return scaled(x.to(x.device), x.sum().item())
"""
    asked = request(inputs=[[4, 8]], state={"weight": [8]}, within=within, **more)
    notes = {}
    try:
        answer = lambda kind, body, program: [2.0] * len(program.outputs)  # noqa: E731
        program = capture(asked, SCALE + code, ask=answer, file=str(folder / "c.py"), notes=notes)
    finally:
        Stage.get().end()
    return program, notes["otherwise"]


@pytest.mark.parametrize(("name", "look"), [*LOOKS.items(), *OTHER_LOOKS])
def test_a_host_that_looks_is_seen(tmp_path, name, look):
    line = f"if {look}: return x"
    program, found = otherwise(tmp_path, line, also=LIKE_A_PROCESS)
    assert len(program.forward) == 3
    assert [name] in found
    assert [names for names in found if name not in names] == []
    other, _ = otherwise(tmp_path, line, within=[name])
    assert other.forward == ()
    assert all(one.num_bytes == 128 for one in other.storages)
    alone, _ = otherwise(tmp_path, line, within=[one for one in EVERY if one != name])
    assert [type(node) for node in alone.forward] == [type(node) for node in program.forward]


@pytest.mark.parametrize(
    "line",
    [
        "pass",
        "assert not x.requires_grad and not torch.is_inference_mode_enabled()",
        "self.kept.setdefault((x.device, torch.is_grad_enabled()), self.weight)",
        "x = torch.nn.functional.pad(x.contiguous(), (0, 8)).to(torch.float64)",
        "x = (x.to('cuda') + 1).to(device=x.device, dtype=torch.float16).to(x)",
        "x.mul_(2).add_(self.weight.to(x.device))",
        "x = x + self.still.training",
    ],
)
def test_a_host_that_does_the_same_is_the_same(tmp_path, line):
    program, found = otherwise(tmp_path, line, also=LIKE_A_PROCESS)
    assert found == []
    assert sum(isinstance(node, Launch) for node in program.forward) == 1


def test_a_look_behind_an_assertion_is_seen(tmp_path):
    line = "assert not x.requires_grad\n        if x.storage_offset(): return x"
    _, found = otherwise(tmp_path, line, also=LIKE_A_PROCESS)
    assert ["views"] in found


def test_calls_in_another_thread_take_their_time_of_further_ones(tmp_path):
    marks = tmp_path / "marks"
    line = f"sum(range(3_000_000))\n        with open({str(marks)!r}, 'a') as one: one.write('.')"
    otherwise(tmp_path, line, within=["another thread"], further=40)
    assert len(marks.read_text()) < 10
