"""Honest candidates in styles of host code that no pair of `tests/corpus` has: each is captured.

A name maps to the keywords of `capturing.request` and the source.
"""

from typing import Any

from tests.evalpool.capture.capturing import HEADER

CORPUS: dict[str, tuple[dict[str, Any], str]] = {}


def _add(name: str, code: str, **asked: Any) -> None:
    CORPUS[name] = (asked, HEADER + code)


_add(
    "attention_with_host_tensor_descriptors",
    """
from triton.tools.tensor_descriptor import TensorDescriptor


def hook(nargs):
    if not isinstance(nargs["desc_q"], TensorDescriptor):
        return
    nargs["desc_q"].block_shape = [nargs["BM"], nargs["D"]]
    nargs["desc_o"].block_shape = [nargs["BM"], nargs["D"]]
    nargs["desc_k"].block_shape = [nargs["BN"], nargs["D"]]
    nargs["desc_v"].block_shape = [nargs["BN"], nargs["D"]]


@triton.autotune(
    [triton.Config({"BM": m, "BN": n}, num_stages=2, num_warps=4, pre_hook=hook)
     for m in (64, 128) for n in (32, 64)], key=["N_CTX", "D"])
@triton.jit
def attend(sm_scale, desc_q, desc_k, desc_v, desc_o, N_CTX, D: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):
    row = tl.program_id(1) * N_CTX + tl.program_id(0) * BM
    q = desc_q.load([row, 0])
    acc = tl.zeros([BM, D], dtype=tl.float32)
    for n in tl.range(0, N_CTX, BN):
        n = tl.multiple_of(n, BN)
        p = tl.dot(q, desc_k.load([tl.program_id(1) * N_CTX + n, 0]).T) * sm_scale
        acc = tl.dot(p.to(tl.float16), desc_v.load([tl.program_id(1) * N_CTX + n, 0]), acc)
    desc_o.store([row, 0], acc.to(tl.float16))


def supports_host_descriptor():
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        Z, H, N, D = q.shape
        o = torch.empty_like(q)
        assert supports_host_descriptor()
        dummy = [1, 1]
        descs = [TensorDescriptor(t, shape=[Z * H * N, D], strides=[D, 1], block_shape=dummy)
                 for t in (q, k, v, o)]
        alloc = lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
        triton.set_allocator(alloc)
        grid = lambda META: (triton.cdiv(N, META["BM"]), Z * H, 1)
        attend[grid](1.44269504 / D**0.5, *descs, N_CTX=N, D=D)
        return o
""",
    inputs=[("float16", [2, 4, 128, 64])] * 3,
)

_add(
    "in_place_with_custom_forward_and_autocast",
    """
@triton.jit
def relu_(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.maximum(tl.load(x + i, mask=i < n), 0), mask=i < n)


class Relu(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        relu_[(triton.cdiv(x.numel(), 256),)](x, x.numel(), 256)
        ctx.mark_dirty(x)
        return x


class ModelNew(torch.nn.Module):
    @torch.inference_mode()
    def forward(self, x):
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            return Relu.apply(x.contiguous())
""",
    inputs=[[33, 7]],
)

_add(
    "grouped_lists_slices_and_out_variants",
    """
from typing import List


@triton.jit
def scale(x, y, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * s, mask=i < n)


def run(xs: List[torch.Tensor]):
    outs = torch.empty(sum(x.numel() for x in xs), device=xs[0].device, dtype=xs[0].dtype)
    parts = torch.split(outs, [x.numel() for x in xs])
    for x, part in zip(xs, parts):
        scale[(triton.cdiv(x.numel(), 64),)](x, part, x.numel(), 2, BLOCK=64)
    return [part.view_as(x) for x, part in zip(xs, parts)]


class ModelNew(torch.nn.Module):
    def forward(self, x, flag, n):
        halves = list(x.chunk(2, dim=0))
        outs = run(halves)
        result = torch.empty_like(x)
        torch.cat(outs, out=result)
        result[0].fill_(1.0 if flag else n)
        result[:, 1:3] = 0
        mask = torch.arange(x.shape[1], device=x.device) < 2
        return result.masked_fill_(mask, float("-inf")).transpose(0, 1).permute(1, 0)
""",
    inputs=[[64, 8], True, 3],
)

_add(
    "launch_options",
    """
@triton.jit(launch_metadata=lambda grid, kernel, args: {"name": kernel.name})
def plain(x: tl.tensor, y, n: tl.int32, flag: "i1", BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(i >= 0)
    if flag:
        tl.store(y + i, tl.load(x + i, mask=i < n, cache_modifier=".cg",
                                eviction_policy="evict_last"), mask=i < n)
    tl.device_print("pid", i)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        grid = (triton.cdiv(x.numel(), 64),)
        with torch.cuda.device_of(x):
            plain[grid](x, y, x.numel(), True)
        plain[grid](x, y, x.numel(), True, num_warps=1, num_stages=1, maxnreg=64, debug=True)
        plain[grid](x, y, x.numel(), False, enable_fp_fusion=False, num_ctas=1)
        plain[grid](x, y, x.numel(), True, launch_pdl=False)
        return y
""",
    inputs=[[256]],
)

_add(
    "float8_and_reinterpret",
    """
@triton.jit
def cast(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(tl.float8e4nv), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        z = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        cast[(4,)](x, y, x.numel(), 64)
        cast[(4,)](x, triton.reinterpret(z, tl.float8e4nv), x.numel(), 64)
        return y, z.view(torch.float8_e4m3fn)
""",
    inputs=[[256]],
)

_add(
    "triton_op_of_the_torch_library",
    """
from torch.library import triton_op, wrap_triton


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@torch.library.custom_op("mine::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    copy[(1,)](x, y, x.numel(), BLOCK=256)
    return y


@triton_op("mine::copied2", mutates_args={})
def copied2(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(copy)[(1,)](x, y, x.numel(), BLOCK=256)
    return y


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return copied2(copied(x))
""",
    inputs=[[200]],
)

_add(
    "inductor_output_as_in_kernelbook",
    """
from torch._inductor.select_algorithm import extern_kernels
from torch._inductor.runtime.triton_heuristics import grid
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import math as tl_math
import torch.nn as nn
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor


@triton.jit
def triton_poi_fused_relu_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK: tl.constexpr):
    xnumel = 256
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x0 = xindex % 4
    tmp0 = tl.load(in_out_ptr0 + x2, xmask)
    tmp1 = tl.load(in_ptr0 + x0, xmask, eviction_policy='evict_last')
    tmp2 = tl_math.exp(tmp0) + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
    tl.store(in_out_ptr0 + x2, tmp4, xmask)


def call(args):
    primals_1, primals_2, primals_3 = args
    args.clear()
    assert_size_stride(primals_1, (4, 4), (4, 1))
    assert_size_stride(primals_2, (4,), (1,))
    assert_size_stride(primals_3, (4, 4, 4, 4), (64, 16, 4, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((64, 4), (4, 1), torch.float32)
        extern_kernels.mm(reinterpret_tensor(primals_3, (64, 4), (4, 1), 0),
            reinterpret_tensor(primals_1, (4, 4), (1, 4), 0), out=buf0)
        buf1 = reinterpret_tensor(buf0, (4, 4, 4, 4), (64, 16, 4, 1), 0)
        del buf0
        get_raw_stream(0)
        triton_poi_fused_relu_0[grid(256)](buf1, primals_2, 256, XBLOCK=128, num_warps=4,
            num_stages=1)
        del primals_2
    return buf1, reinterpret_tensor(primals_3, (64, 4), (4, 1), 0)


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, input_0):
        output = call([self.fc.weight, self.fc.bias, input_0])
        return output[0]
""",
    inputs=[[4, 4, 4, 4]],
    init=[4],
    state={"fc.weight": [4, 4], "fc.bias": [4]},
)

_add(
    "allocations_of_inductor_without_inductor",
    """
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor


@triton.jit
def triton_poi_fused_mul_0(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + xindex, xmask)
    tl.store(out_ptr0 + xindex, tmp0 * 2.0, xmask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert_size_stride(x, (10, 20), (20, 1))
        buf0 = empty_strided_cuda((10, 20), (20, 1), torch.float32)
        triton_poi_fused_mul_0[(2,)](x, buf0, 200, XBLOCK=128)
        return reinterpret_tensor(buf0, (200,), (1,), 0)
""",
    inputs=[[10, 20]],
)
