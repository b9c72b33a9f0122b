"""Errors of eager, and of TF32 in the same products."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.judge.numbers import blocks
from forge.evalpool.judge.numbers.called import copied
from forge.evalpool.judge.numbers.errors import own_error
from forge.evalpool.judge.numbers.errors.exact import run_exact
from forge.evalpool.judge.numbers.errors.logits import RoundedTwice, has_attention
from forge.evalpool.judge.numbers.errors.own_error import (
    OwnErrors,
    _to_tf32,
    errors_of,
    has_products,
)
from forge.evalpool.judge.numbers.gpu_compare import Allowed, mismatch
from forge.evalpool.judge.numbers.inputs.draws import MAX_TF32_ERROR
from forge.evalpool.judge.numbers.opcount import OpCounter
from forge.evalpool.judge.numbers.shares import with_shares

if TYPE_CHECKING:
    from collections.abc import Callable


def test_ten_bits_of_mantissa_are_kept() -> None:
    values = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-12, 1 + 3 * 2**-12, -3.0, 0.0])
    expected = torch.tensor([1.0, 1 + 2**-10, 1.0, 1.0, -3.0, 0.0])
    assert torch.equal(_to_tf32(values), expected)


def errors(*, is_tf32: bool) -> OwnErrors:
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(256, 64), [torch.randn(32, 256)]
    with torch.no_grad():
        outputs = [model(*inputs)]
        return errors_of(model, inputs, outputs, changed=[], is_tf32=is_tf32)


def test_a_product_in_tf32_may_lose_a_thousandth_everywhere() -> None:
    assert errors(is_tf32=False).largest < 0.1
    found = errors(is_tf32=True)
    assert 0 < found.packed[0].amin() < found.packed[0].amax() < 2e-3
    assert 1 < found.largest < 100


def test_a_small_output_may_lose_roundings_of_a_typical_one() -> None:
    """A tanh as 2σ(2x) - 1 loses them where its argument is near 0, as all of it is here."""
    torch.manual_seed(0)
    inputs = [torch.randn(256, 512) * 1e-3]
    right = torch.tanh(inputs[0])

    def found(got: torch.Tensor, given: torch.Tensor) -> str | None:
        (own,) = errors_of(torch.nn.Tanh(), inputs, [right], changed=[], is_tf32=False).packed
        error = with_shares([given, right], [torch.zeros_like(own), own], precision="fp32")[1]
        return mismatch(got, right, allowed=Allowed.of(right, error, precision="fp32"))

    by_sigmoid = 2 * torch.sigmoid(2 * inputs[0]) - 1
    assert found(by_sigmoid, right) is not None
    assert found(by_sigmoid, torch.rand(256, 512)) is None
    quotients = torch.rand(256, 512)
    quotients[0, 0] = 1e9
    assert found(right * 1.001, quotients) is not None


class Crowded(torch.nn.Softmax):
    """Finds no room for more than 16 rows in float64."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dtype is torch.float64 and len(input) > 16:
            raise torch.OutOfMemoryError
        return super().forward(input)


class Counted(torch.nn.Softmax):
    """Remembers the rows of its calls."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.rows: list[int] = []

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(input))
        return super().forward(input)

    def __deepcopy__(self, memo: dict[int, Any]) -> Counted:
        return self


def test_errors_of_some_rows_stand_for_all_where_float64_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = [torch.randn(128, 256) * 4]
    outputs = [torch.softmax(inputs[0], -1)]
    whole = errors_of(torch.nn.Softmax(-1), inputs, outputs, changed=[], is_tf32=False)
    monkeypatch.setattr(own_error, "_is_slow", lambda _, outputs: len(outputs[0]) > 16)
    model = Counted()
    part = errors_of(model, inputs, outputs, changed=[], is_tf32=False)
    assert model.rows.count(128) == 1  # not again on nudged inputs
    assert part.packed[0].shape == whole.packed[0].shape
    assert 0.2 < part.largest / whole.largest < 2


def test_a_cpu_is_never_slow_however_busy_it_is() -> None:
    assert not own_error._is_slow(-1e9, [torch.zeros(1)])


def test_errors_of_some_rows_stand_for_all_where_there_is_no_room() -> None:
    inputs = [torch.randn(128, 256) * 4]
    outputs = [torch.softmax(inputs[0], -1)]
    whole = errors_of(torch.nn.Softmax(-1), inputs, outputs, changed=[], is_tf32=False)
    part = errors_of(Crowded(-1), inputs, outputs, changed=[], is_tf32=False)
    assert part.packed[0].shape == whole.packed[0].shape
    assert 0.2 < part.largest / whole.largest < 2


def test_errors_of_some_rows_say_nothing_where_rows_depend_on_each_other() -> None:
    inputs = [torch.randn(128, 256)]
    outputs = [torch.softmax(inputs[0], 0)]
    found = errors_of(Crowded(0), inputs, outputs, changed=[], is_tf32=False)
    assert found.packed[0].numel() == 0


def test_an_epilogue_that_grows_large_values_is_no_ill_conditioned_product() -> None:
    class Squared(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x @ y).square()

    torch.manual_seed(0)
    inputs = [torch.randn(512, 1024), torch.randn(1024, 512) / 1024**0.5]
    outputs = [Squared()(*inputs)]
    found = errors_of(Squared(), inputs, outputs, changed=[], is_tf32=True)
    assert 1 < found.largest < MAX_TF32_ERROR / 2


@pytest.mark.parametrize("draw", [torch.randn, torch.rand])
@pytest.mark.parametrize("size", [64, 512])
def test_operands_cut_to_tf32_pass_and_bf16_does_not(draw: Callable[..., Any], size: int) -> None:
    """Also of values of one sign, where what is cut adds up."""
    torch.manual_seed(0)
    model = torch.nn.Linear(size, 64, bias=False)
    inputs = [draw(64, size)]
    with torch.no_grad():
        model.weight.copy_(draw(64, size))
        expected = model(*inputs)
        (error,) = errors_of(model, inputs, [expected], changed=[], is_tf32=True).packed
        cut = _to_tf32(inputs[0]).double() @ _to_tf32(model.weight).double().T
        half = inputs[0].bfloat16().double() @ model.weight.bfloat16().double().T
    allowed = Allowed.of(expected, error, precision="fp32")
    results = [mismatch(got.float(), expected, allowed=allowed) for got in (cut, half)]
    assert results[0] is None
    assert draw is torch.rand or results[1] is not None


@pytest.mark.parametrize(
    ("work", "flops", "expected"),
    [
        ({"addmm": 9}, 6, True),
        ({"_cudnn_rnn": 9}, 0, True),
        ({"_thnn_fused_lstm_cell": 9, "add": 4}, 0, True),
        ({"relu": 9}, 0, False),
    ],
)
def test_layers_of_cudnn_may_use_tf32_too(work: dict[str, int], flops: int, expected: bool) -> None:
    """Their products are one operation, without FLOPs of its own."""
    counted = OpCounter()
    counted.work, counted.flops = work, flops
    assert has_products(counted) is expected
    assert not has_products(None)


def test_a_reference_that_insists_on_its_type_has_no_known_error() -> None:
    class Typed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is torch.float32
            return x + 1

    inputs = [torch.randn(4)]
    found = errors_of(Typed(), inputs, [inputs[0] + 1], changed=[], is_tf32=False)
    assert [one.numel() for one in found.packed] == [0]
    of_tf32 = errors_of(Typed(), inputs, [inputs[0] + 1.5], changed=[], is_tf32=True)
    assert of_tf32.largest > 1000, "without TF32 it would be 1 in fp32"


def test_layers_that_a_lambda_refers_to_and_first_states_are_in_float64_too() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleDict({"first": torch.nn.Linear(8, 8)})
            parts = self.parts
            self.run = lambda x: parts["first"](x)
            self.last = torch.nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.zeros(1, x.shape[1], 8), torch.zeros(1, x.shape[1], 8)
            return self.last(self.run(x), first)[0]

    with torch.no_grad():
        model, inputs = Model(), [torch.randn(4, 3, 8)]
        (exact,) = run_exact(model, inputs, changed=[]) or []
        assert exact.dtype is torch.float64
        assert torch.allclose(exact.float(), model(*inputs), atol=1e-5)
    assert model(*inputs).dtype is torch.float32, "its own layers stay as they are"
    assert torch.get_default_dtype() is torch.float32


def test_a_copy_of_a_model_runs_its_own_layers_behind_a_lambda() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            layer, lock = self.layer, threading.Lock()
            self.run = lambda x: layer(x) if lock else x

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.run(x)

    model = Model()
    made, x = copied(model), torch.randn(3, 2)
    torch.nn.init.zeros_(made.layer.weight)
    assert torch.equal(made(x), made.layer.bias.expand(3, 2))
    assert not torch.equal(model(x), made(x))


@pytest.mark.parametrize("is_tf32", [False, True])
@pytest.mark.parametrize(
    "function",
    [torch.log, torch.floor, lambda x: x.softmax(1), lambda x: x @ x.mT, lambda x: x.sum(1)],
)
def test_errors_do_not_depend_on_how_results_are_cut(
    function: Callable[[torch.Tensor], torch.Tensor],
    is_tf32: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    torch.manual_seed(0)
    inputs = [3 * torch.randn(16, 20)]  # of which log makes NaN
    inputs[0][3, 4] = 0.0  # and here an infinity
    inputs[0][5] = torch.arange(20.0)  # which floor jumps at
    found: list[OwnErrors] = []
    for elements in (blocks.CACHED, 7):
        monkeypatch.setattr(blocks, "CACHED", elements)
        torch.manual_seed(1)
        outputs = [function(inputs[0])]
        found.append(errors_of(Model(), inputs, outputs, changed=[], is_tf32=is_tf32))
    whole, cut = found
    assert (whole.largest > 0) == (is_tf32 or function is not torch.floor)
    assert cut.largest == pytest.approx(whole.largest, rel=1e-9)
    assert torch.allclose(cut.packed[0], whole.packed[0], rtol=1e-6, atol=0)


def test_an_own_error_is_the_largest_of_its_slab() -> None:
    """Both kinds count: what eager rounds, and what moves with the last bits of the inputs."""

    class Wave(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(1000 * x)

    torch.manual_seed(0)
    values = torch.randn(32, 64)
    output = Wave()(values)
    torch.manual_seed(1)
    (packed,) = errors_of(Wave(), [values], [output], changed=[], is_tf32=False).packed
    torch.manual_seed(1)
    exact, moved = Wave()(values.double()), Wave()(own_error._nudged(values, least_bytes=4))
    lost = torch.maximum((output.double() - exact).abs(), (moved - exact).abs())
    news = lost.where(lost > own_error.COVERED * 1e-4 / 4 * output.double().abs(), 0.0)
    assert torch.equal(packed, torch.cat([news.amax(1), news.amax(0)]).float())


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.T / 4, -1) @ v


class KeptLogarithm(torch.nn.Module):
    """Attention whose logits are computed twice, as by a kernel that keeps the log of the sum."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kept = torch.logsumexp(q @ k.T / 4, -1, keepdim=True)
        again = torch.stack([(q * row).flip(-1).sum(-1) / 4 for row in k], -1)
        return torch.exp(again - kept) @ v


@pytest.mark.parametrize("huge", [0, 1])
def test_logits_of_a_huge_input_may_be_rounded_twice(huge: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(64, 16), torch.randn(48, 16), torch.randn(48, 16)]
    inputs[huge] *= 2**17 / inputs[huge].abs().max()
    model = Attention()
    right, got = model(*inputs), KeptLogarithm()(*inputs)

    def found(got: torch.Tensor, *, has_large_logits: bool) -> str | None:
        own = errors_of(
            model, inputs, [right], changed=[], is_tf32=True, has_large_logits=has_large_logits
        )
        assert own.largest < MAX_TF32_ERROR
        return mismatch(got, right, allowed=Allowed.of(right, own.packed[0], precision="fp32"))

    assert found(got, has_large_logits=False) is not None
    assert found(got, has_large_logits=True) is None
    assert found(right * 1.2, has_large_logits=True) is not None
    halves = [one.half() for one in inputs]
    assert found(model(*halves).float(), has_large_logits=True) is not None


def test_a_kernel_of_attention_may_round_scaled_queries_to_half_precision() -> None:
    torch.manual_seed(50)  # of 200, 10 have such a row
    inputs = [(torch.randn(64, 16) * size).half() for size in (16, 8, 1)]
    right = Attention()(*inputs)
    scaled = (inputs[0] * (math.log2(math.e) / 4)).float()
    k, v = inputs[1].float(), inputs[2].float()
    got = (torch.softmax(scaled @ k.T * math.log(2), -1) @ v).half()

    def found(got: torch.Tensor, *, has_scaled_halves: bool) -> str | None:
        own = errors_of(
            Attention(), inputs, [right], changed=[], is_tf32=False, precision="fp16",
            has_scaled_halves=has_scaled_halves,
        )  # fmt: skip
        return mismatch(got, right, allowed=Allowed.of(right, own.packed[0], precision="fp16"))

    assert found(got, has_scaled_halves=False) is not None
    assert found(got, has_scaled_halves=True) is None
    assert found(right * 1.2, has_scaled_halves=True) is not None


def test_products_before_a_softmax_are_attention() -> None:
    assert has_attention(["mm", "_softmax"])
    assert has_attention(["_scaled_dot_product_flash_attention_for_cpu"])
    assert not has_attention(["_softmax", "mul"])
    assert not has_attention(["bmm", "relu"])


def test_a_softmax_rounded_twice_is_off_by_its_largest_logit() -> None:
    logits = torch.tensor([[8e4, 1.0], [-1e30, -1e30], [1.0, 2.0]], dtype=torch.float64)
    with RoundedTwice():
        found, logs = torch.softmax(logits, -1), torch.log_softmax(logits, -1)
    assert (found[0, 0] - 1).abs() == pytest.approx(8e4 * 2**-23, rel=0.01)
    assert found[1, 0] == pytest.approx(0.5, rel=0.14)
    assert (found[2] - torch.softmax(logits, -1)[2]).abs().max() < 1e-6
    assert logs[0, 0].abs() == pytest.approx(8e4 * 2**-23)
