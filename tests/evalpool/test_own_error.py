"""What eager loses, and what TF32 would lose of the same products."""

from __future__ import annotations

import torch

from forge.evalpool.judge.own_error import _to_tf32, errors_of, largest_error


def test_ten_bits_of_mantissa_are_kept() -> None:
    values = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-12, 1 + 3 * 2**-12, -3.0, 0.0])
    expected = torch.tensor([1.0, 1 + 2**-10, 1.0, 1 + 2**-10, -3.0, 0.0])
    assert torch.equal(_to_tf32(values), expected)


def errors(*, is_tf32: bool) -> tuple[torch.Tensor, float]:
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(256, 64), [torch.randn(32, 256)]
    with torch.no_grad():
        outputs = [model(*inputs)]
        found = errors_of(model, inputs, outputs, changed=[], is_tf32=is_tf32)
    return found[0], largest_error(outputs, found, precision="fp32")


def test_a_product_in_tf32_may_lose_a_thousandth_everywhere() -> None:
    error, tolerances = errors(is_tf32=False)
    assert tolerances < 0.1
    error, tolerances = errors(is_tf32=True)
    assert error.unique().numel() == 1
    assert 3 < tolerances < 100


def test_a_reference_that_insists_on_its_type_has_no_known_error() -> None:
    class Typed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is torch.float32
            return x + 1

    inputs = [torch.randn(4)]
    found = errors_of(Typed(), inputs, [inputs[0] + 1], changed=[], is_tf32=True)
    assert [one.numel() for one in found] == [0]
