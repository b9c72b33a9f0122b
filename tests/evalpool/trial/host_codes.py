"""Answers as others write them, with their usual host code: each is judged.

In the style of published answers to KernelBench, of Triton's tutorials and of libraries of fused
layers. The kernels are beside the point.
"""

HEAD = """
import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def kernel(x, w, y, n, stride, BLOCK: tl.constexpr, FAST: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

"""

CODES = {
    "a wrapper that checks its arguments": """
def triton_op(x: torch.Tensor, w: Optional[torch.Tensor] = None, *, block: int = 1024):
    assert x.is_cuda, f"expected a CUDA tensor, got {x.device} of {type(x).__name__}"
    assert x.dtype in {torch.float32, torch.float16}
    if x.dim() != 2:
        raise ValueError(f"expected 2 dimensions, not {x.ndim}: {tuple(x.shape)!r}")
    if not x.is_contiguous():
        x = x.contiguous()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    n = y.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    kernel[grid](x, w if w is not None else x, y, n, x.stride(0), BLOCK=block)
    return y.view(*x.shape[:-1], -1)


class ModelNew(nn.Module):
    def __init__(self, dim: int = 1) -> None:
        super(ModelNew, self).__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dim = self.dim
        if dim < 0:
            dim += x.dim()
        return triton_op(x.transpose(dim, -1)).transpose(dim, -1)


def get_inputs():
    import time
    torch.manual_seed(int(time.time()))
    return [torch.randn(8, 8).cuda()]
""",
    "parameters initialised by hand": """
class ModelNew(nn.Module):
    def __init__(self, inner, outer, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))
        if bias:
            self.bias = nn.Parameter(torch.empty(outer))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = nn.init._calculate_fan_in_and_fan_out(self.weight)
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            nn.init.uniform_(self.bias, -bound, bound)
        with torch.no_grad():
            self.weight.data = self.weight.data.contiguous()
            self.weight.mul_(0.5)

    def forward(self, x):
        y = x.new_empty((x.size(0), self.weight.shape[0]))
        kernel[(y.numel(),)](x, self.weight, y, y.numel(), x.stride(0), BLOCK=1, num_warps=1)
        return y if self.bias is None else y + self.bias
""",
    "weights packed at the first call": """
class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
        self._packed, self._shapes = None, {}

    def _prepare(self, device, dtype):
        if self._packed is None or self._packed.device != device or self._packed.dtype != dtype:
            self._packed = self.fc.weight.detach().to(dtype).t().contiguous()
        return self._packed

    def _grid(self, n):
        key = (n, 64)
        if key not in self._shapes:
            self._shapes[key] = (triton.cdiv(n, 64),)
        return self._shapes[key]

    def forward(self, x):
        w, y = self._prepare(x.device, x.dtype), torch.empty_like(x)
        kernel[self._grid(x.numel())](x, w, y, x.numel(), w.stride(0), BLOCK=64)
        return y
""",
    "a cache at the top": """
_TABLES = {}


def table(n, device):
    key = (n, device.type)
    found = _TABLES.get(key)
    if found is None:
        found = torch.arange(n, device=device, dtype=torch.float32)
        _TABLES[key] = found
    return found


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(4,)](x, table(x.shape[-1], x.device), y, x.numel(), 1, BLOCK=256)
        return y
""",
    "an autograd function": """
class Fused(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w, eps):
        rows, columns = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        warps = min(max(block // 256, 1), 8)
        kernel[(rows,)](x, w, y, columns, x.stride(0), BLOCK=block, num_warps=warps)
        ctx.save_for_backward(x, w)
        ctx.eps, ctx.block = eps, block
        return y

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = torch.empty_like(dy)
        if ctx.needs_input_grad[0]:
            kernel[(dy.shape[0],)](dy, w, dx, dy.numel(), dy.stride(0), BLOCK=ctx.block)
        return dx, None, None


class ModelNew(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(n)), eps

    def forward(self, hidden):
        shape = hidden.shape
        hidden = hidden.reshape(-1, shape[-1])
        return Fused.apply(hidden, self.weight, self.variance_epsilon).view(shape)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"
""",
    "other kernels where gradients are wanted": """
class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, x, y, x.numel(), 1, BLOCK=1024, FAST=True)
        return y


class ModelNew(nn.Module):
    def forward(self, x):
        if torch.is_grad_enabled() and x.requires_grad:
            return Saved.apply(x)
        y = torch.empty_like(x)
        kernel[(1,)](x, x, y, x.numel(), 1, BLOCK=1024)
        return y
""",
    "a persistent kernel": """
def num_programs(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


class ModelNew(nn.Module):
    def forward(self, a, b):
        sms = num_programs(a.device)
        y = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
        with torch.cuda.device(a.device):
            grid = (min(sms, triton.cdiv(y.numel(), 64)),)
            kernel[grid](a, b, y, y.numel(), a.stride(0), BLOCK=64)
        return y
""",
    "an autotuned kernel": """
def configs():
    return [
        triton.Config({"BLOCK": block}, num_warps=warps, num_stages=stages)
        for block in (64, 128)
        for warps, stages in [(4, 2), (8, 3)]
        if block >= 64
    ]


@triton.autotune(configs=configs(), key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
""",
    "batch norm with its two modes": """
class ModelNew(nn.Module):
    def __init__(self, channels, momentum=0.1):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding="same", bias=False)
        self.bn = nn.BatchNorm2d(channels, momentum=momentum)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x):
        x = self.conv(x)
        if self.training and self.bn.track_running_stats:
            self.num_calls += 1
            self.bn.num_batches_tracked.add_(1)
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            self.bn.running_mean.mul_(1 - self.bn.momentum).add_(mean * self.bn.momentum)
        else:
            mean, var = self.bn.running_mean, self.bn.running_var
        scale = self.bn.weight * torch.rsqrt(var + self.bn.eps)
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, scale, y, x.numel(), x.stride(1), BLOCK=256)
        return y
""",
    "a network of blocks": """
class Block(nn.Module):
    expansion = 4

    def __init__(self, width, stride=1, sizes=[1, 3]):
        super().__init__()
        self.stride = stride
        self.convs = nn.ModuleList(nn.Conv2d(width, width, k, padding=k // 2) for k in sizes)
        self.down = None if stride == 1 else nn.Sequential(nn.AvgPool2d(stride), nn.Identity())

    def forward(self, x):
        out = x
        for i, conv in enumerate(self.convs):
            out = F.relu(conv(out), inplace=True) if i else conv(out)
        out += x
        return out if self.down is None else self.down(out)


class ModelNew(nn.Module):
    def __init__(self, width, num_blocks=2, config=None):
        super().__init__()
        self.width = width
        self.layers = self._make_layer(num_blocks)
        self.heads = nn.ModuleDict({"a": nn.Linear(width, 2), "b": nn.Linear(width, 2)})

    def _make_layer(self, count):
        layers = []
        for i in range(count):
            layers.append(Block(self.width, stride=1))
            self.width = self.width * 1
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.layers(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, x, y, x.numel(), *x.stride()[:1], BLOCK=x.shape[1])
        outs = {name: head(y) for name, head in self.heads.items()}
        return torch.cat(list(outs.values()), dim=-1), [out.sum() for out in outs.values()]
""",
    "a recurrent layer by the names of its weights": """
class ModelNew(nn.Module):
    def __init__(self, size, hidden, layers=1):
        super().__init__()
        self.gru = nn.GRU(size, hidden, layers, batch_first=True, bidirectional=False)

    def forward(self, x, h0):
        states = []
        for layer in range(self.gru.num_layers):
            suffix = "" if layer % 2 == 0 else ""
            w = getattr(self.gru, f"weight_ih_l{layer}{suffix}")
            bias = getattr(self.gru, "bias_ih_l0", None)
            h = h0[layer]
            gates = torch.matmul(x, w.t()) + bias
            outputs = []
            for t in range(x.size(1)):
                y = torch.empty_like(h)
                kernel[(1,)](gates[:, t].contiguous(), h, y, h.numel(), h.stride(0), BLOCK=64)
                h = y
                outputs.append(h)
            states.append(h)
            x = torch.stack(outputs, dim=1)
        return x, torch.stack(states)
""",
    "a dataclass, a partial and a module of integers": """
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace


@dataclass(frozen=True)
class Config:
    block: int = 64
    warps: int = 4


@lru_cache(maxsize=None)
def sizes(n: int, block: int) -> Tuple[int, int]:
    return triton.cdiv(n, block), 1 << (n - 1).bit_length()


class ModelNew(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.config = Config(block=128)
        self.more = SimpleNamespace(scale=scale, power=int(math.log2(64)))
        self.act = partial(F.gelu, approximate="tanh")

    def forward(self, x):
        y = torch.empty_like(x)
        count, _ = sizes(x.numel(), self.config.block)
        kernel[(count,)](x, x, y, x.numel(), 1, BLOCK=self.config.block)
        return self.act(y * self.more.scale)
""",
    "an import that may fail": """
try:
    from triton.language.extra import libdevice
except ImportError:
    from triton.language.extra.cuda import libdevice

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = True


@triton.jit
def tanh(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, libdevice.tanh(tl.load(x + i, mask=i < n)), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, *inputs, **options):
        x, *rest = inputs
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        tanh[(x.numel(),)](x, y, n=x.numel(), BLOCK=1)
        return y


if __name__ == "__main__":
    print(ModelNew()(torch.randn(4, device=DEVICE)))
""",
    "a loss with values that it reads": """
class ModelNew(nn.Module):
    def __init__(self, margin=1.0, reduction="mean"):
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise NotImplementedError(reduction)
        self.margin, self.reduction = float(margin), reduction

    def forward(self, predictions, targets, lengths):
        predictions, targets = predictions.contiguous(), targets.contiguous()
        longest = int(lengths.max().item())
        partial = torch.zeros((longest,), device=predictions.device, dtype=torch.float32)
        kernel[(longest,)](predictions, targets, partial, predictions.numel(), 1, BLOCK=32)
        out = partial[:longest]
        out[0] = 0.0
        return out.mean() if self.reduction == "mean" else out.sum()
""",
    "a layer of torch's with another forward": """
class Fast(nn.Linear):
    def __init__(self, *args, activation: str = "relu", **kwargs):
        super().__init__(*args, **kwargs)
        self.activation = {"relu": F.relu, "silu": F.silu}[activation]

    @property
    def width(self):
        return max(self.in_features, self.out_features)

    @staticmethod
    def _block(n):
        return triton.next_power_of_2(n) if n <= 4096 else 4096

    def forward(self, input):
        y = torch.empty(*input.shape[:-1], self.out_features, device=input.device)
        kernel[(1,)](input, self.weight, y, y.numel(), 1, BLOCK=self._block(self.width))
        return self.activation(y)


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc1, self.fc2 = Fast(n, n), Fast(n, n, activation="silu")

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None):
        residual = x
        x = self.fc2(self.fc1(x)) + residual
        if mask is not None:
            x = x.masked_fill(mask[:, None] == 0, float("-inf"))
        return F.softmax(x, dim=-1)
""",
}
