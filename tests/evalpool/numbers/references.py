"""References of all kinds, small, for honest answers: (name, function or module, inputs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Case = tuple[str, Any, Callable[[], list[Any]]]


def _r(*shape: int) -> Callable[[], list[Any]]:
    return lambda: [torch.rand(*shape)]


def _n(*shape: int) -> Callable[[], list[Any]]:
    return lambda: [torch.randn(*shape)]


def _both(
    a: tuple[int, ...], b: tuple[int, ...], make: Any = torch.rand
) -> Callable[[], list[Any]]:
    return lambda: [make(*a), make(*b)]


def _definite(n: int) -> list[Any]:
    a = torch.randn(4, n, n)
    return [a @ a.mT / n + 2 * torch.eye(n)]


def _attention(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def _causal(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v


def _masked(x: Any, mask: Any) -> Any:
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


def _labels(rows: int, classes: int) -> Callable[[], list[Any]]:
    return lambda: [torch.randn(rows, classes), torch.randint(0, classes, (rows,))]


def _distributions() -> list[Any]:
    return [torch.randn(32, 64).softmax(-1).log(), torch.randn(32, 64).softmax(-1)]


def _hinge() -> list[Any]:
    return [torch.rand(64, 32), torch.randint(0, 2, (64, 32)).float() * 2 - 1]


def _rope(x: Any, positions: Any) -> Any:
    angle = positions[:, None] / 100 ** (torch.arange(0, x.shape[1], 2) / x.shape[1])
    a, b = x[:, ::2], x[:, 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _scatter(x: Any, index: Any) -> Any:
    return torch.zeros(16, x.shape[1]).index_add(0, index, x)


class Net(nn.Module):
    """Convolutions with norms and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.c, self.d = nn.BatchNorm2d(16).eval(), nn.GroupNorm(4, 16)
        self.e = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.c(self.a(x)))
        y = y + F.gelu(self.d(self.b(y)))
        return self.e(y.mean((2, 3)))


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.o = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.a(x)).chunk(3, -1)
        x = x + self.o(_causal(q, k, v))
        return x + self.down(F.silu(self.up(self.b(x))))


REFERENCES: list[Case] = [
    ("relu", torch.relu, _r(32, 64)),
    ("gelu", F.gelu, _r(32, 64)),
    ("silu", F.silu, _n(32, 64)),
    ("tanh", torch.tanh, _n(32, 64)),
    ("softplus", F.softplus, _r(32, 64)),
    ("hardsigmoid", F.hardsigmoid, _n(32, 64)),
    ("log", torch.log, _r(32, 64)),
    ("sqrt", torch.sqrt, _r(32, 64)),
    ("acosh of beyond one", lambda x: torch.acosh(x + 1), _r(16, 64)),
    ("exp", torch.exp, _n(32, 64)),
    ("softmax", lambda x: x.softmax(-1), _r(16, 512)),
    ("log softmax", lambda x: x.log_softmax(-1), _r(16, 512)),
    ("softmax of columns", lambda x: x.softmax(0), _n(256, 16)),
    ("logsumexp", lambda x: x.logsumexp(1), _n(32, 256)),
    ("sum", torch.sum, _r(64, 128)),
    ("sum of mixed signs", torch.sum, _n(64, 128)),
    ("row sums", lambda x: x.sum(1), _r(32, 512)),
    ("column sums", lambda x: x.sum(0), _n(512, 32)),
    ("mean", lambda x: x.mean(1), _r(8, 64, 32)),
    ("variance", lambda x: x.var(1), _n(16, 512)),
    ("standard deviation", lambda x: x.std(), _r(16, 512)),
    ("max", lambda x: x.amax(1), _r(16, 256)),
    ("min over the middle", lambda x: x.amin(1), _r(8, 64, 16)),
    ("arg-max", lambda x: x.argmax(1), _r(16, 256)),
    ("top k", lambda x: x.topk(4).values, _n(16, 128)),
    ("sort", lambda x: x.sort(-1).values, _n(16, 128)),
    ("cumulative sum", lambda x: x.cumsum(1), _r(8, 512)),
    ("reversed cumulative sum", lambda x: x.flip(1).cumsum(1).flip(1), _n(8, 512)),
    ("exclusive cumulative sum", lambda x: F.pad(x.cumsum(1), (1, -1)), _r(8, 256)),
    ("masked cumulative sum", lambda x, m: (x * m).cumsum(1),
     lambda: [torch.rand(8, 256), torch.randint(0, 2, (8, 256)).bool()]),
    ("cumulative product", lambda x: x.cumprod(1), _r(8, 512)),
    ("product", lambda x: x.prod(1), lambda: [torch.rand(16, 256) + 0.5]),
    ("Frobenius norm", lambda x: x / x.norm(), _r(64, 128)),
    ("L1 norm", lambda x: x / x.abs().sum(1, keepdim=True), _n(32, 128)),
    ("L2 norm", lambda x: x / x.norm(dim=1, keepdim=True), _r(32, 128)),
    ("normalize", lambda x: F.normalize(x, dim=1), _n(16, 32, 4, 4)),
    ("RMS norm", lambda x: x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt(), _r(8, 16, 8, 8)),
    ("layer norm", lambda: nn.LayerNorm(96), _r(32, 96)),
    ("layer norm of images", lambda: nn.LayerNorm([4, 16, 16]), _r(4, 4, 16, 16)),
    ("batch norm", lambda: nn.BatchNorm2d(8), _r(8, 8, 8, 8)),
    ("batch norm in use", lambda: nn.BatchNorm2d(8).eval(), _r(8, 8, 8, 8)),
    ("instance norm", lambda: nn.InstanceNorm2d(8), _r(4, 8, 16, 16)),
    ("group norm", lambda: nn.GroupNorm(4, 16), _r(4, 16, 8, 8)),
    ("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), _r(2, 4, 32, 32)),
    ("average pooling", lambda x: F.avg_pool2d(x, 3, 2, 1), _r(2, 4, 32, 32)),
    ("adaptive pooling", lambda x: F.adaptive_avg_pool2d(x, 1), _n(4, 8, 16, 16)),
    ("product of matrices", torch.matmul, _both((64, 96), (96, 48))),
    ("product of normal matrices", torch.matmul, _both((64, 96), (96, 48), torch.randn)),
    ("batched product", torch.matmul, _both((4, 32, 64), (4, 64, 32))),
    ("vector product", torch.matmul, _both((64, 512), (512, 1))),
    ("long inner dimension", torch.matmul, _both((8, 4096), (4096, 8))),
    ("outer product", lambda a, b: a[:, None] * b, _both((64,), (64,))),
    ("diagonal product", lambda d, b: torch.diag(d) @ b, _both((64,), (64, 32))),
    ("lower triangular", lambda a, b: torch.tril(a @ b),
     lambda: [torch.rand(64, 64).tril(), torch.rand(64, 64).tril()]),
    ("symmetric", torch.matmul,
     lambda: [(a := torch.rand(48, 48)) + a.T, (b := torch.rand(48, 48)) + b.T]),
    ("linear", lambda: nn.Linear(64, 48), _r(32, 64)),
    ("two layers", lambda: nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)),
     _r(32, 64)),
    ("convolution", lambda: nn.Conv2d(4, 8, 3), _r(2, 4, 24, 24)),
    ("strided convolution", lambda: nn.Conv1d(8, 16, 5, 2, 2), _n(4, 8, 128)),
    ("transposed convolution", lambda: nn.ConvTranspose2d(8, 4, 3, 2), _r(2, 8, 12, 12)),
    ("depthwise convolution", lambda: nn.Conv2d(8, 8, 3, groups=8), _r(2, 8, 16, 16)),
    ("convolution in 3D", lambda: nn.Conv3d(2, 4, 3), _r(2, 2, 8, 12, 12)),
    ("mean square error", F.mse_loss, _both((64, 128), (64, 128))),
    ("Huber", F.smooth_l1_loss, _both((64, 128), (64, 128))),
    ("cross-entropy", F.cross_entropy, _labels(64, 128)),
    ("negative log-likelihood", lambda x, t: F.nll_loss(x.log_softmax(1), t), _labels(64, 32)),
    ("KL divergence", lambda p, q: F.kl_div(p, q, reduction="batchmean"), _distributions),
    ("KL divergence of probabilities", lambda p, q: F.kl_div(p.log(), q, reduction="batchmean"),
     lambda: [torch.rand(32, 64).softmax(-1), torch.rand(32, 64).softmax(-1)]),
    ("hinge", lambda x, t: (1 - x * t).clamp(min=0).mean(), _hinge),
    ("triplet margin", F.triplet_margin_loss,
     lambda: [torch.rand(32, 64), torch.rand(32, 64), torch.rand(32, 64)]),
    ("cosine similarity", lambda a, b: F.cosine_similarity(a, b, 1), _both((32, 128), (32, 128))),
    ("binary cross-entropy", F.binary_cross_entropy, _both((32, 64), (32, 64))),
    ("attention", _attention, lambda: [torch.randn(2, 32, 16) for _ in range(3)]),
    ("causal attention", _causal, lambda: [torch.randn(2, 32, 16) for _ in range(3)]),
    ("masked softmax", _masked, lambda: [torch.randn(16, 64), torch.ones(16, 64).bool()]),
    ("embedding", lambda: nn.Embedding(50, 32), lambda: [torch.randint(0, 50, (8, 16))]),
    ("gather", lambda x, i: x.gather(1, i),
     lambda: [torch.randn(16, 64), torch.randint(0, 64, (16, 8))]),
    ("index add", _scatter, lambda: [torch.randn(64, 8), torch.randint(0, 16, (64,))]),
    ("rotary positions", _rope, lambda: [torch.randn(64, 16), torch.arange(64)]),
    ("histogram", lambda x: torch.bincount(x, minlength=8), lambda: [torch.randint(0, 8, (200,))]),
    ("Cholesky", torch.linalg.cholesky, lambda: _definite(16)),
    ("inverse", torch.linalg.inv, lambda: _definite(16)),
    ("solve", torch.linalg.solve, lambda: [*_definite(12), torch.randn(4, 12, 3)]),
    ("interpolation", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), _r(2, 4, 8, 8)),
    ("search in sorted", torch.searchsorted,
     lambda: [torch.rand(64).sort().values, torch.rand(32)]),
    ("recurrence", lambda: nn.GRU(8, 16, batch_first=True), _n(4, 12, 8)),
    ("whole network", Net, _r(2, 4, 12, 12)),
    ("transformer block", Block, _n(2, 24, 32)),
    ("swish of a gate", lambda: nn.Sequential(nn.Linear(32, 64), nn.GLU()), _n(32, 32)),
    ("float64", lambda x: x.softmax(-1), lambda: [torch.randn(16, 64, dtype=torch.float64)]),
    ("float64 product", torch.matmul,
     lambda: [torch.rand(32, 64, dtype=torch.float64), torch.rand(64, 8, dtype=torch.float64)]),
]  # fmt: skip
