"""Tensors that a reference's constructor draws and no `state_dict` has, for the candidate."""

import pytest

from forge.records.verdict import Status

HEAD = "import torch\nimport torch.nn as nn\n"
MODEL = """
class {name}(nn.Module):
    made = 0
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return {body}
"""
INPUTS = """
def get_inputs():
    return [torch.randn(16, 128)]
def get_init_inputs():
    return []
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(x, w, y, N: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, N)
    tl.store(y + row * N + column, tl.load(x + row * N + column) * tl.load(w + column))

def scaled(x, w):
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, w, y, N=x.shape[1])
    return y
"""
DRAWN = "self.h = torch.randn(128)"


def judged(bench, init: str, answer: str, *, own: str = "self.h", reference: str = "self.h"):
    problem = HEAD + MODEL.format(name="Model", init=init, body=f"x * {reference}") + INPUTS
    new = MODEL.format(name="ModelNew", init=answer, body=f"scaled(x, {own})")
    return bench.judge(HEAD + KERNEL + new, problem=problem)


@pytest.mark.parametrize(
    ("answer", "own"),
    [
        (DRAWN, "self.h"),
        ("self.other = torch.rand(128) * 3", "self.other"),
        ("self.register_buffer('h', torch.randn(128))", "self.h"),
        ("self.all = (torch.randn(64), torch.randn(128))", "self.all[1]"),
    ],
)
def test_random_numbers_are_those_of_the_reference(bench, answer: str, own: str) -> None:
    verdict = judged(bench, DRAWN, answer, own=own)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_random_numbers_may_be_seeded(bench) -> None:
    seeded = f"torch.manual_seed(1); {DRAWN}"
    verdict = judged(bench, seeded, seeded)
    assert verdict.status is Status.CORRECT, verdict.detail


@pytest.mark.parametrize(
    ("init", "answer"),
    [
        ("self.h = torch.linspace(1, 2, 128)", DRAWN),
        (DRAWN, "self.h = torch.linspace(1, 2, 128)"),
        (
            f"{DRAWN}; self.other = self.h * 2",
            f"{DRAWN}; self.other = self.h + 5; self.h = self.other",
        ),
        ("self.w = nn.Parameter(torch.randn(128)); self.h = self.w.detach() * 0 + self.w", DRAWN),
        ("Model.made += 1; assert Model.made == 1; self.h = torch.linspace(1, 2, 128)", DRAWN),
    ],
)
def test_numbers_that_are_not_drawn_are_given_to_nobody(bench, init: str, answer: str) -> None:
    assert judged(bench, init, answer).status is Status.WRONG


def test_a_buffer_of_the_same_name_may_have_another_meaning(bench) -> None:
    answer = "self.register_buffer('h', 1 / torch.linspace(1, 2, 128))"
    init = "self.h = torch.linspace(1, 2, 128); self.state = torch.randn(128)"
    verdict = judged(bench, init, answer, reference="(1 / self.h)")
    assert verdict.status is Status.CORRECT, verdict.detail


def test_a_model_may_replace_methods_of_modules(bench) -> None:
    replaced = "self.named_modules = {}; self.w = nn.Parameter(torch.rand(128))"
    verdict = judged(
        bench, "self.w = nn.Parameter(torch.rand(128))", replaced, own="self.w", reference="self.w"
    )
    assert verdict.status is Status.CORRECT, verdict.detail
