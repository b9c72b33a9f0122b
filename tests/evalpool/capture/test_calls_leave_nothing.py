"""A call of `forward` leaves nothing but its outputs, and asks for the identity of no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge.evalpool.judge.capture.exchange import CaptureFailed
from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from tests.evalpool.capture.capturing import SCALE, request

if TYPE_CHECKING:
    from pathlib import Path

    from forge.evalpool.judge.program.format import Program

MODEL = """
import functools

@functools.lru_cache
def kept_for(n):
    return torch.empty(n, n, device="cuda")

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4, bias=False)
        self.register_buffer("steps", torch.zeros(2, 1))
        self.register_buffer("turned", None, persistent=False)
        self.buf, self.kept = torch.empty(2, 4, 4, device="cuda"), None

    def forward(self, x, xs, opts):
        y = scaled(x)
        {}
        return y
"""


def captured(folder: Path, lines: str, *, is_pure: bool = True) -> Program:
    asked = request(
        inputs=[[4, 4], [4, 4], [4, 4]],
        state={"lin.weight": [4, 4], "steps": [2, 1]},
        is_pure=is_pure,
    )
    x, *xs = asked["inputs"][1]
    opts: list[Any] = ["dict", [["alpha", ["value", 0.5]], ["sizes", ["list", [["value", 4]]]]]]
    asked["inputs"] = ["list", [x, ["list", xs], opts]]
    code = SCALE + MODEL.format(lines.replace("\n", "\n        "))
    try:
        return capture(asked, code, file=str(folder / "candidate.py"))
    finally:
        Stage.get().end()


@pytest.mark.parametrize(
    ("lines", "changed"),
    [
        ("xs.pop()", "arguments[1]"),
        ("xs += [y]", "arguments[1]"),
        ("xs[0] = y", "arguments[1][0]"),
        ("xs.reverse()", "arguments[1][0]"),
        ("xs[1].unsqueeze_(0)", "arguments[1][1]"),
        ("opts['seen'] = 1", "arguments[2]"),
        ("opts['alpha'] *= 2", "arguments[2]['alpha']"),
        ("opts['sizes'].append(1)", "arguments[2]['sizes']"),
        ("x.t_()", "arguments[0]"),
        ("x.requires_grad_()", "arguments[0]"),
        ("self.eval()", "training of self"),
        ("[one.eval() for one in self.children()]", "training of self.lin"),
        ("self.lin.double()", "lin.weight"),
        ("self.lin.half()\nself.lin.float()", "lin.weight"),
        ("self.lin.weight.t_()", "lin.weight"),
        ("self.steps.squeeze_()", "steps"),
        ("self.buf.transpose_(0, 1)", "shape of a tensor"),
        ("self.steps = None", "steps"),
        ("self.register_buffer('seen', self.steps)", "seen"),
        ("torch.set_grad_enabled(True)", "gradient mode"),
    ],
)
def test_a_call_that_changes_something_is_refused(tmp_path: Path, lines: str, changed: str) -> None:
    with pytest.raises(CaptureFailed) as failed:
        captured(tmp_path, lines)
    assert changed in failed.value.message
    assert captured(tmp_path, lines, is_pure=False).outputs  # other protocols take it


@pytest.mark.parametrize(
    "lines",
    [
        "y = self.buf[0]\nscale[(1,)](x, y, 16, 2.0, BLOCK=64)",
        "if self.kept is None: self.kept = y\ny = self.kept\nscale[(1,)](x, y, 16, 2.0, BLOCK=64)",
        "y = kept_for(4)\nscale[(1,)](x, y, 16, 2.0, BLOCK=64)",
        "if self.kept is None: self.kept = y\nscale[(1,)](x, self.kept, 16, 2.0, BLOCK=64)",
    ],
)
def test_an_output_is_written_by_no_other_call(tmp_path: Path, lines: str) -> None:
    with pytest.raises(CaptureFailed, match="earlier call has returned"):
        captured(tmp_path, lines)


@pytest.mark.parametrize(
    "keys", ["{x, xs[0]}", "{x: 0, xs[0]: 1}", "dict.fromkeys(xs)", "{(x, 1), (xs[0], 1)}"]
)
def test_which_tensors_are_the_same_is_the_callers(tmp_path: Path, keys: str) -> None:
    with pytest.raises(CaptureFailed, match="a tensor is a key"):
        captured(tmp_path, f"y = y[: len({keys})]")


@pytest.mark.parametrize(
    "lines",
    [
        "scale[(1,)](x, self.buf, 16, 2.0, BLOCK=64)\ny = scaled(self.buf[0])",
        "self.steps.add_(1)\nx.add_(1)\nxs[0] += 1",
        "xs = [one.contiguous() for one in xs]\nxs.pop()",
        "opts = {**opts, 'beta': 1}\nopts.pop('alpha')",
        "if self.turned is None:\n    self.turned = self.lin.weight.t().contiguous()",
        "n = {4: 1, 'a': 2}[x.shape[0]]\nwith torch.no_grad():\n    y = y.view(-1)",
    ],
)
def test_workspaces_and_objects_of_the_call_are_free(tmp_path: Path, lines: str) -> None:
    assert captured(tmp_path, lines).outputs
