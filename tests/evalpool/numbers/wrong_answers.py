"""Wrong answers that would be right on samples of one distribution, each with its reference.

By cause, as found by a source-aware attack on the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

Inputs = Callable[[], list[Any]]


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A reference, its inputs and an answer that must be refused."""

    name: str
    reference: Callable[..., Any]
    """A function of the inputs, or makes a module if `is_model`."""
    inputs: Inputs
    answer: Callable[..., Any]
    """A function of the inputs; of the model and the inputs if `is_model`."""
    is_model: bool = False
    precision: str = "fp32"


def rand(*shape: int) -> Inputs:
    return lambda: [torch.rand(*shape)]


def randn(*shape: int) -> Inputs:
    return lambda: [torch.randn(*shape)]


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def rms_norm_of_half(x: torch.Tensor) -> torch.Tensor:
    half = x[..., : x.shape[-1] // 2]
    return x / (half.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def layer_norm_of_every_other(x: torch.Tensor) -> torch.Tensor:
    part = x[..., ::2]
    var, mean = torch.var_mean(part, -1, correction=0, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt()


def cross_entropy_of_half(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    norm = x[:, :half].logsumexp(1) + torch.log(torch.tensor(2.0))
    return (norm - x.gather(1, target[:, None])[:, 0]).mean()


def half_mse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    return (x[:half] - y[:half]).square().mean()


def quarter_norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.flatten()[: x.numel() // 4].norm() * 2)


def seven_eighths(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten()
    return flat[: flat.numel() * 7 // 8].sum() * (8 / 7)


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    angle = positions[:, None] * torch.logspace(0, -2, x.shape[1] // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def truncated_product(x: torch.Tensor) -> torch.Tensor:
    out = x.cumprod(-1)
    out[..., 256:] = out[..., 255:256]
    return out


def gap_argmax(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[:, 500:524] = float("-inf")
    return x.argmax(1)


def columns() -> list[Any]:
    return [torch.randn(64, 96), torch.logspace(-4, 2, 96)]


def lazy_columns(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * torch.where(scale > 1e-3, scale, torch.zeros(()))


def masked_mean(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(x.shape[1])[None] < lengths[:, None]
    return (x * inside).sum(1) / lengths


def bf16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.bfloat16().float() @ b.bfloat16().float()


def layer(a: Any, b: Any, bias: Any, residual: Any) -> torch.Tensor:
    return a @ b + bias + residual


def half_layer(a: Any, b: Any, bias: Any, residual: Any) -> torch.Tensor:
    return a.half().float() @ b.half().float() + bias + residual


def layer_inputs() -> list[Any]:
    shapes = ((64, 128), (128, 64), (64,), (64, 64))
    return [torch.randn(*shape) for shape in shapes]


def attention(q: Any, k: Any, v: Any) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def half_attention(q: Any, k: Any, v: Any) -> torch.Tensor:
    return attention(q, k, v.half().float())


def with_fp8() -> list[Any]:
    return [torch.rand(64, 64), (torch.rand(64) + 0.5).to(torch.float8_e4m3fn)]


def segments() -> list[Any]:
    return [torch.randn(64, 8), torch.arange(0, 65, 8)]


def segment_sums(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    sums = torch.cat([torch.zeros(1, x.shape[1]), x.cumsum(0)])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def product_answer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def positive_factors() -> list[Any]:
    return [torch.rand(64, 128), torch.rand(128, 64)]


class Biased(torch.nn.Module):
    """A layer whose bias starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(32, 32) * 20)
        self.bias = torch.nn.Parameter(torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


WRONG = [
    Wrong(
        name="identity for a ReLU of values that are never negative",
        reference=torch.relu, inputs=rand(16, 64), answer=torch.clone,
    ),
    Wrong(
        name="root mean square of half a row",
        reference=rms_norm, inputs=randn(16, 4096), answer=rms_norm_of_half,
    ),
    Wrong(
        name="layer norm of every other element",
        reference=lambda x: F.layer_norm(x, (x.shape[-1],)), inputs=randn(8, 2048),
        answer=layer_norm_of_every_other,
    ),
    Wrong(
        name="half of the classes of a cross-entropy",
        reference=F.cross_entropy, answer=cross_entropy_of_half,
        inputs=lambda: [torch.randn(256, 512), torch.randint(0, 512, (256,))],
    ),
    Wrong(
        name="seven eighths of a sum",
        reference=torch.sum, inputs=rand(512, 512), answer=seven_eighths,
    ),
    Wrong(
        name="a quarter of a Frobenius norm",
        reference=lambda x: x / x.norm(), inputs=rand(256, 512), answer=quarter_norm,
    ),
    Wrong(
        name="half of a mean square error",
        reference=F.mse_loss, answer=half_mse,
        inputs=lambda: [torch.rand(256, 256), torch.rand(256, 256)],
    ),
    Wrong(
        name="mean over half a row",
        reference=lambda x: x.mean(1), answer=lambda x: x[:, : x.shape[1] // 2].mean(1),
        inputs=rand(64, 4096),
    ),
    Wrong(
        name="softmax over seven eighths",
        reference=lambda x: x.softmax(1), inputs=randn(16, 4096),
        answer=lambda x: x.exp() / (x[:, :3584].exp().sum(1, keepdim=True) * 8 / 7),
    ),
    Wrong(
        name="a mask that is all ones is not read",
        reference=masked_softmax, answer=lambda x, mask: x.softmax(-1),
        inputs=lambda: [torch.randn(16, 64), torch.ones(16, 64, dtype=torch.bool)],
    ),
    Wrong(
        name="a float mask of ones is not read",
        reference=lambda x, mask: x * mask, answer=lambda x, mask: x,
        inputs=lambda: [torch.randn(16, 64), torch.ones(16, 64)],
    ),
    Wrong(
        name="a state of zeros is not read",
        reference=lambda x, state: x + state, answer=lambda x, state: x,
        inputs=lambda: [torch.randn(16, 64), torch.zeros(16, 64)],
    ),
    Wrong(
        name="positions are taken for their number",
        reference=rotate, answer=lambda x, p: rotate(x, torch.arange(len(x))),
        inputs=lambda: [torch.randn(64, 32), torch.arange(64)],
    ),
    Wrong(
        name="lengths are taken for full",
        reference=masked_mean, answer=lambda x, lengths: x.mean(1),
        inputs=lambda: [torch.randn(8, 64), torch.full((8,), 64)],
    ),
    Wrong(
        name="segments are taken for equal ones",
        reference=segment_sums, answer=lambda x, offsets: x.view(8, 8, 8).sum(1), inputs=segments,
    ),
    Wrong(
        name="a bias of zeros is left out",
        reference=Biased, is_model=True, answer=lambda model, x: x @ model.weight,
        inputs=randn(16, 32),
    ),
    Wrong(
        name="a layer norm without its weight and bias",
        reference=lambda: torch.nn.LayerNorm(64), is_model=True, inputs=randn(16, 64),
        answer=lambda model, x: F.layer_norm(x, (64,)),
    ),
    Wrong(
        name="running statistics are taken for their defaults",
        reference=lambda: torch.nn.BatchNorm1d(64).eval(), is_model=True, inputs=randn(16, 64),
        answer=lambda model, x: x * model.weight + model.bias,
    ),
    Wrong(
        name="float64 computed in float32",
        reference=lambda x: x.softmax(-1), answer=lambda x: x.float().softmax(-1).double(),
        inputs=lambda: [torch.randn(16, 64, dtype=torch.float64)],
    ),
    Wrong(
        name="bf16 for TF32, of factors of one sign",
        reference=product_answer, answer=bf16_product, inputs=positive_factors,
    ),
    Wrong(
        name="bf16 for fp32",
        reference=product_answer, answer=bf16_product, inputs=positive_factors,
    ),
    Wrong(
        name="256 of 2,048 factors",
        reference=lambda x: x.cumprod(-1), answer=truncated_product,
        inputs=lambda: [torch.rand(4, 2048) + 0.55],
    ),
    Wrong(
        name="an arg-max with a gap",
        reference=lambda x: x.argmax(1), answer=gap_argmax, inputs=randn(512, 1024),
    ),
    Wrong(
        name="columns of small scale are zero",
        reference=lambda x, scale: x * scale, answer=lazy_columns, inputs=columns,
    ),
    Wrong(
        name="epsilon left out of a norm",
        reference=lambda x: F.layer_norm(x, (64,), eps=1e-2),
        answer=lambda x: F.layer_norm(x, (64,), eps=1e-12),
        inputs=lambda: [torch.randn(64, 64) * 9],
    ),
    Wrong(
        name="exponentials without their maximum, cut at 20",
        reference=lambda x: x.softmax(1), inputs=randn(32, 64),
        answer=lambda x: x.clamp(max=20).exp() / x.clamp(max=20).exp().sum(1, keepdim=True),
    ),
    Wrong(
        name="GELU by its branch for small values",
        reference=F.gelu, answer=lambda x: torch.where(x.abs() < 6, F.gelu(x), x * (x > 0) * 0.99),
        inputs=randn(64, 64),
    ),
    Wrong(
        name="history of a cumulative sum cut off",
        reference=lambda x: x.cumsum(1), inputs=randn(8, 1024),
        answer=lambda x: x.cumsum(1) - F.pad(x.cumsum(1), (1000, -1000)),
    ),
    Wrong(
        name="the last columns of a maximum are not read",
        reference=lambda x: x.amax(1), answer=lambda x: x[:, :-8].amax(1), inputs=randn(16, 1024),
    ),
    Wrong(
        name="half precision inside",
        reference=lambda x: (x * 1.7).tanh(), answer=lambda x: (x.half() * 1.7).tanh().float(),
        inputs=randn(64, 64),
    ),
    Wrong(
        name="fp16 for TF32, in a layer",
        reference=layer, answer=half_layer, inputs=layer_inputs,
    ),
    Wrong(
        name="fp16 for TF32, in one operand",
        reference=product_answer, answer=lambda a, b: a @ b.half().float(),
        inputs=lambda: [torch.randn(64, 128), torch.randn(128, 64)],
    ),
    Wrong(
        name="fp16 for TF32, of operands scaled to fit",
        reference=product_answer,
        answer=lambda a, b: (a / 16).half().float() @ (b / 16).half().float() * 256,
        inputs=lambda: [torch.randn(64, 128), torch.randn(128, 64)],
    ),
    Wrong(
        name="fp16 for TF32, in the values of an attention",
        reference=attention, answer=half_attention,
        inputs=lambda: [torch.randn(2, 32, 16) for _ in range(3)],
    ),
    Wrong(
        name="fp16 for TF32, in the values of an attention, scaled to fit",
        reference=attention,
        answer=lambda q, k, v: half_attention(q, k, v / 16) * 16,
        inputs=lambda: [torch.randn(2, 32, 16) for _ in range(3)],
    ),
    Wrong(
        name="identity for a ReLU, beside an fp8 factor",
        reference=lambda x, y: x.relu() * y.float(), answer=lambda x, y: x * y.float(),
        inputs=with_fp8,
    ),
]  # fmt: skip
