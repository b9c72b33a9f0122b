"""Problems are answered by the compiler: own kernels, sizes as expressions, right at two sizes."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from forge.data.harvest.records import Unanswered
from forge.records.verdict import Status
from tests.evalpool.benches import Bench, any_host_code

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        {init}

    def forward(self, {given}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{arguments}]
"""


def problem(result: str, inputs: str, init: str = "pass", arguments: str = "") -> str:
    names = [f"a{place}" for place in range(len(arguments.split(",")) if arguments else 0)]
    given = ["x", "y", "z"][: inputs.count("torch.")]
    return PROBLEM.format(
        parameters=", ".join(names), init=init, given=", ".join(given), result=result,
        inputs=inputs, arguments=arguments,
    )  # fmt: skip


CASES = {
    "row norm": (
        problem("torch.softmax(x / x.norm(dim=-1, keepdim=True), -1)", "torch.rand(4, 24)"),
        ("torch.rand(4, 24)", "torch.rand(6, 37)"),
    ),
    "product with its epilogue": (
        problem(
            "torch.relu(self.fc(x)) * 0.5", "torch.rand(20, 24)",
            "self.fc = nn.Linear(a0, a1)", "24, 40",
        ),
        ("torch.rand(20, 24)", "torch.rand(33, 24)"),
    ),
    "product of rows in two axes": (
        problem(
            "self.fc(x).amax(-1)", "torch.rand(3, 20, 24)",
            "self.fc = nn.Linear(a0, a1)", "24, 40",
        ),
        ("3, 20, 24", "2, 33, 24"),
    ),
    "mean of what a mask keeps": (
        problem(
            "(x * (y > 0)).sum(1) / (y > 0).sum(1).clamp(min=1) + x.logsumexp(1)",
            "torch.rand(4, 24), torch.randn(4, 24)",
        ),
        ("4, 24", "6, 37"),
    ),
    "batched product": (
        problem("x @ y.transpose(1, 2)", "torch.rand(2, 20, 24), torch.rand(2, 18, 24)"),
        ("2, 20, 24", "2, 35, 24"),
    ),
    "convolution of what is padded": (
        problem(
            "self.conv(x)", "torch.rand(2, 4, 52)",
            "self.conv = nn.Conv1d(a0, 20, 5, 2, padding=2, padding_mode='reflect')", "4",
        ),
        ("2, 4, 52", "3, 4, 37"),
    ),
    "smallest of it and a number": (
        problem("torch.min(x, torch.tensor(0.4, device=x.device)) * 2", "torch.rand(4, 24)"),
        ("4, 24", "6, 37"),
    ),
    "convolution in groups": (
        problem(
            "self.conv(x).tanh()", "torch.rand(2, 24, 9, 11)",
            "self.conv = nn.Conv2d(a0, 20, 3, stride=2, padding=1, groups=4)", "24",
        ),
        ("9, 11", "20, 17"),
    ),
    "convolution of each channel": (
        problem(
            "self.conv(x)", "torch.rand(2, 20, 9, 11)",
            "self.conv = nn.Conv2d(a0, 20, 3, padding=1, groups=20)", "20",
        ),
        ("9, 11", "20, 17"),
    ),
    "convolution with an uneven window": (
        problem(
            "self.conv(x).relu() + x", "torch.rand(2, 20, 9, 11)",
            "self.conv = nn.Conv2d(a0, a0, (3, 5), padding=(1, 2))", "20",
        ),
        ("9, 11", "20, 17"),
    ),
    "largest of windows": (
        problem(
            "self.pool(x).tanh()", "torch.rand(2, 3, 9, 11)", "self.pool = nn.MaxPool2d(3, 2, 1)"
        ),
        ("9, 11", "20, 17"),
    ),
    "means of windows": (
        problem(
            "self.pool(x) * 2", "torch.rand(2, 3, 9, 11, 7)",
            "self.pool = nn.AvgPool3d((2, 3, 1), padding=(1, 1, 0))",
        ),
        ("9, 11, 7", "6, 17, 5"),
    ),
    "running product and sum": (
        problem("torch.cumprod(x + 0.5, 1) + torch.cumsum(x, 1)", "torch.rand(4, 24)"),
        ("4, 24", "6, 1037"),
    ),
    "nearest neighbours": (
        problem("nn.functional.interpolate(x, scale_factor=2) * 2", "torch.rand(2, 3, 9, 11)"),
        ("9, 11", "20, 17"),
    ),
    "transposed convolution": (
        problem(
            "self.conv(x)", "torch.rand(2, 20, 9, 7)",
            "self.conv = nn.ConvTranspose2d(a0, 18, 3, 2, 1, output_padding=1, groups=2)", "20",
        ),
        ("9, 7", "5, 19"),
    ),
    "convolution of points": (
        problem("self.conv(x)", "torch.rand(2, 20, 1, 1)", "self.conv = nn.Conv2d(a0, 9, 1)", "20"),
        ("2, 20, 1, 1", "5, 20, 1, 1"),
    ),
    "norm over a batch": (
        problem("self.norm(x)", "torch.rand(3, 20, 8, 8)", "self.norm = nn.BatchNorm2d(a0)", "20"),
        ("3, 20, 8, 8", "4, 20, 9, 6"),
    ),
    "mean of all": (
        problem("(x ** 2).mean()", "torch.rand(3, 4, 9, 11)"), ("9, 11", "20, 17"),
    ),
    "casts to integers": (
        problem("(x * 9).int().float() + (x > 0.5).int() + (x > 0.7).int()", "torch.rand(4, 24)"),
        ("4, 24", "6, 37"),
    ),
    "a module whose name is no identifier": (
        problem(
            "self.of['1x1'](x)", "torch.rand(20, 24)",
            "self.of = nn.ModuleDict({'1x1': nn.Linear(a0, 40)})", "24",
        ).replace("self, x)", "self, x, /)"),
        ("torch.rand(20, 24)", "torch.rand(33, 24)"),
    ),
}  # fmt: skip


PRODUCTS = (
    "product", "batched", "convolution in", "convolution of points", "convolution with",
    "convolution of what", "transposed", "a module",
)  # fmt: skip
"""Beginnings of the names of cases whose kernels multiply matrices."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch, in its own imports
@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_own_and_right_at_two_sizes(name: str, bench: Bench):
    from forge.data.inductor.compiler.graph import answer, preload

    text, (old, new) = CASES[name]
    preload()
    found = answer(text)
    assert found.policy == "own"
    assert "float64" not in found.code
    assert "associative_scan" not in found.code
    assert ("tl.dot" in found.code) == name.startswith(PRODUCTS)
    assert old in text
    assert len(found.kernels) == 2 or name != "mean of all"
    # the judge's list of host code lacks `_modules`, by which such a module is named
    with any_host_code() if name == "a module whose name is no identifier" else nullcontext():
        verdicts = [
            bench.judge(found.code, problem=asked) for asked in (text, text.replace(old, new))
        ]
    assert [one.detail for one in verdicts if one.status is not Status.CORRECT] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch, in its own imports
@pytest.mark.parametrize(
    "text",
    [
        problem("x.tolist()", "torch.rand(3)"),
        problem("x.to_dense() * 2", "torch.rand(4, 24).to_sparse()"),
        problem("x @ x.t()", "torch.rand(4, 24).double()"),
    ],
    ids=["no tensor", "a sparse input", "a product in fp64"],
)
def test_a_problem_without_an_answer_has_a_reason(text: str):
    from forge.data.inductor.compiler.graph import answer

    with pytest.raises(Unanswered):
        answer(text)


NUMBERED = """
class Block:
    def forward(self, x):
        return x / self.scale


class Model:
    def forward(self, x):
        x = x / self.scale; x = x + 1  # twice
        return self.block(
            x.sum(dim=self.dim)
        )
"""


def test_a_line_of_the_problem_has_the_numbers_that_its_model_keeps() -> None:
    from forge.data.inductor.compiler.lines import texts_of

    model = SimpleNamespace(scale=2.0, dim=(1, 2), block=None)
    assert texts_of(NUMBERED, model) == {
        4: "4 return x / self.scale",
        9: "9 x = x / 2.0; x = x + 1",
        **dict.fromkeys((10, 11, 12), "10 return self.block(x.sum(dim=(1, 2)))"),
    }
