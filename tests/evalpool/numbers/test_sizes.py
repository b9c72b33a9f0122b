"""Sizes of problems are counted without data, and only what cannot fit is refused."""

import pytest

from forge.evalpool.judge.numbers.given import ProblemTooLarge, count_sizes, require_room

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width, width))
        self.register_buffer("count", torch.zeros(10, dtype=torch.int64))
    def forward(self, x, index):
        return x @ self.weight, index
def get_inputs():
    return [torch.rand(1000, 100), torch.zeros(1000, dtype=torch.int64)]
def get_init_inputs():
    return [100]
"""


def count(source: str = SOURCE, *, precision: str = "fp32", max_bytes: int = 1000):
    return count_sizes(source, entry_point="Model", precision=precision, max_bytes=max_bytes)


def test_all_tensors_count_at_the_problems_precision() -> None:
    found = count()
    assert (found.inputs, found.state) == (400_000 + 8000, 40_000 + 80)
    assert found.outputs == 400_000 + 8000
    found = count(precision="bf16")
    assert (found.inputs, found.state, found.outputs) == (208_000, 20_080, 208_000)


def test_a_small_problem_is_not_run() -> None:
    found = count(SOURCE.replace("return x @", "raise ValueError #"), max_bytes=1 << 30)
    assert found.outputs == 0


def test_outputs_that_need_data_count_as_nothing() -> None:
    found = count(SOURCE.replace("return x @", "x.numpy(); return x @"))
    assert (found.inputs, found.outputs) == (408_000, 0)


@pytest.mark.parametrize("inputs", ["x.numpy()", "int(x.sum())", "1 / 0", "exit()"])
def test_a_source_that_does_not_run_without_data_has_unknown_sizes(inputs: str) -> None:
    source = SOURCE.replace(
        "return [torch.rand", f"x = torch.ones(3); {inputs}; return [torch.rand"
    )
    assert count(source) is None


def test_only_a_problem_that_cannot_fit_is_refused() -> None:
    needed = 4 * 408_000 + 40_080
    require_room(SOURCE, entry_point="Model", precision="fp32", max_bytes=needed)
    with pytest.raises(ProblemTooLarge, match=r"0\.00 GB .* judge has 0\.00 GB"):
        require_room(SOURCE, entry_point="Model", precision="fp32", max_bytes=needed - 1)
