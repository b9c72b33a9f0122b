"""Honest candidates in the styles that people write: each must be captured.

A name maps to the keywords of `capturing.request` and the source.
"""

from __future__ import annotations

from typing import Any

from tests.evalpool.capture.capturing import HEADER

CORPUS: dict[str, tuple[dict[str, Any], str]] = {}


def _add(name: str, code: str, **asked: Any) -> None:
    CORPUS[name] = (asked, HEADER + code)


_add(
    "fused_softmax_of_the_tutorial",
    """
from triton.runtime import driver

DEVICE = triton.runtime.driver.active.get_active_torch_device()
properties = driver.active.utils.get_device_properties(DEVICE.index)
NUM_SM = properties["multiprocessor_count"]
NUM_REGS = properties["max_num_regs"]
SIZE_SMEM = properties["max_shared_mem"]
WARP_SIZE = properties["warpSize"]
target = triton.runtime.driver.active.get_current_target()


@triton.jit
def softmax_kernel(out, inp, in_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr,
                   num_stages: tl.constexpr):
    start, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(start, n_rows, step, num_stages=num_stages):
        cols = tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(inp + row * in_stride + cols, mask=mask, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out + row * out_stride + cols, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    n_rows, n_cols = x.shape
    BLOCK = triton.next_power_of_2(n_cols)
    num_stages = 4 if SIZE_SMEM > 200000 else 2
    y = torch.empty_like(x)
    kernel = softmax_kernel.warmup(y, x, x.stride(0), y.stride(0), n_rows, n_cols, BLOCK=BLOCK,
                                   num_stages=num_stages, num_warps=8, grid=(1,))
    kernel._init_handles()
    n_regs, size_smem = kernel.n_regs, kernel.metadata.shared
    occupancy = NUM_REGS // (n_regs * WARP_SIZE * 8)
    occupancy = min(occupancy, SIZE_SMEM // size_smem)
    num_programs = min(NUM_SM * occupancy, n_rows)
    kernel[(num_programs, 1, 1)](y, x, x.stride(0), y.stride(0), n_rows, n_cols, BLOCK, num_stages)
    return y


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x)
""",
    inputs=[[1823, 781]],
)

_add(
    "matmul_with_autotune_and_grouping",
    """
def configs():
    sizes = [(128, 64, 32, 8), (64, 64, 32, 4), (32, 32, 32, 2)]
    return [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": g}, num_stages=3, num_warps=4)
        for m, n, k, g in sizes
    ]


@triton.autotune(configs=configs(), key=["M", "N", "K"])
@triton.jit
def matmul_kernel(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr):
    pid = tl.program_id(axis=0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * num_n
    group = pid // in_group
    first = group * GROUP
    size = min(num_m - first, GROUP)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    tl.assume(pid_m >= 0)
    om = (pid_m * BM + tl.arange(0, BM)) % M
    on = (pid_n * BN + tl.arange(0, BN)) % N
    ok = tl.arange(0, BK)
    ap = a + (om[:, None] * sam + ok[None, :] * sak)
    bp = b + (ok[:, None] * sbk + on[None, :] * sbn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(ap, mask=ok[None, :] < K - k * BK, other=0.0)
        y = tl.load(bp, mask=ok[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        ap += BK * sak
        bp += BK * sbk
    if ACT == "leaky_relu":
        acc = leaky_relu(acc)
    cm = pid_m * BM + tl.arange(0, BM)
    cn = pid_n * BN + tl.arange(0, BN)
    tl.store(c + scm * cm[:, None] + scn * cn[None, :], acc.to(tl.float16),
             mask=(cm[:, None] < M) & (cn[None, :] < N))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        assert a.shape[1] == b.shape[0], "Incompatible dimensions"
        assert a.is_contiguous()
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=torch.float16)
        grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)
        matmul_kernel[grid](a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
                            c.stride(0), c.stride(1), ACT="leaky_relu")
        return c
""",
    inputs=[("float16", [512, 256]), ("float16", [256, 384])],
)

_add(
    "layer_norm_in_an_autograd_function",
    """
@triton.jit
def norm(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        total += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    var = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        var += x * x
    rstd = 1 / tl.sqrt(tl.sum(var, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < N
        w, b = tl.load(W + cols, mask=mask), tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=mask)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shape, weight, bias, eps):
        y = torch.empty_like(x)
        flat = x.reshape(-1, x.shape[-1])
        M, N = flat.shape
        mean = torch.empty((M,), dtype=torch.float32, device=x.device)
        rstd = torch.empty((M,), dtype=torch.float32, device=x.device)
        BLOCK = min(65536 // x.element_size(), triton.next_power_of_2(N))
        if N > BLOCK:
            raise RuntimeError("too wide")
        warps = min(max(BLOCK // 256, 1), 8)
        norm[(M,)](flat, y, weight, bias, mean, rstd, flat.stride(0), N, eps, BLOCK=BLOCK,
                   num_warps=warps, num_ctas=1)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError


class ModelNew(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.ln = torch.nn.LayerNorm(shape)
        self.register_buffer("running", torch.zeros(1))

    def forward(self, x):
        return LayerNorm.apply(x, self.ln.normalized_shape, self.ln.weight, self.ln.bias, 1e-5)
""",
    inputs=[[8, 16, 96]],
    init=[96],
    state={"ln.weight": [96], "ln.bias": [96]},
)

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
def attend(sm_scale, M, desc_q, desc_k, desc_v, desc_o, N_CTX, D: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):
    start = tl.program_id(0)
    off = tl.program_id(1) * N_CTX
    q = desc_q.load([off + start * BM, 0])
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32) + 1.0
    acc = tl.zeros([BM, D], dtype=tl.float32)
    for n in tl.range(0, N_CTX, BN):
        n = tl.multiple_of(n, BN)
        k = desc_k.load([off + n, 0]).T
        qk = tl.dot(q, k) * sm_scale
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = desc_v.load([off + n, 0])
        acc = tl.dot(p.to(tl.float16), v, acc * alpha[:, None])
        m_i = m_ij
    rows = start * BM + tl.arange(0, BM)
    tl.store(M + off + rows, m_i + tl.math.log2(l_i))
    desc_o.store([off + start * BM, 0], (acc / l_i[:, None]).to(tl.float16))


def supports_host_descriptor():
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        Z, H, N, D = q.shape
        o = torch.empty_like(q)
        M = torch.empty((Z, H, N), device=q.device, dtype=torch.float32)
        assert supports_host_descriptor()
        dummy = [1, 1]
        descs = [TensorDescriptor(t, shape=[Z * H * N, D], strides=[D, 1], block_shape=dummy)
                 for t in (q, k, v, o)]
        alloc = lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
        triton.set_allocator(alloc)
        grid = lambda META: (triton.cdiv(N, META["BM"]), Z * H, 1)
        attend[grid](1.44269504 / D**0.5, M, *descs, N_CTX=N, D=D)
        return o
""",
    inputs=[("float16", [2, 4, 128, 64])] * 3,
)

_add(
    "persistent_matmul_with_device_descriptors",
    """
@triton.jit
def pid_of(tile, num_in_group, num_m, GROUP: tl.constexpr):
    group = tile // num_in_group
    first = group * GROUP
    size = min(num_m - first, GROUP)
    return first + (tile % size), (tile % num_in_group) // size


@triton.jit(launch_metadata=lambda grid, kernel, args: {"name": kernel.name})
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
               GROUP: tl.constexpr, NUM_SMS: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, NUM_SMS, flatten=True):
        pm, pn = pid_of(tile, GROUP * num_n, num_m, GROUP)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = a_desc.load([pm * BM, k * BK])
            y = b_desc.load([pn * BN, k * BK])
            acc = tl.dot(x, y.T, acc)
        om = pm * BM + tl.arange(0, BM)
        on = pn * BN + tl.arange(0, BN)
        tl.store(c + om[:, None] * N + on[None, :], acc.to(tl.float16),
                 mask=(om[:, None] < M) & (on[None, :] < N))


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[0]
        NUM_SMS = torch.cuda.get_device_properties("cuda").multi_processor_count
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)

        def alloc(size: int, alignment: int, stream):
            return torch.empty(size, device="cuda", dtype=torch.int8)

        triton.set_allocator(alloc)
        tiles = triton.cdiv(M, 64) * triton.cdiv(N, 64)
        persistent[(min(NUM_SMS, tiles),)](a, b, c, M, N, K, 64, 64, 64, 8, NUM_SMS, num_stages=3,
                                           num_warps=4)
        return c
""",
    inputs=[("float16", [256, 128]), ("float16", [192, 128])],
)

_add(
    "dropout_with_a_seed",
    """
@triton.jit
def seeded(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, tl.load(x + i, mask=mask) / (1 - p), 0.0), mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        out = torch.empty_like(x)
        assert x.is_contiguous()
        n = x.numel()
        seeded[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, self.p, 123, BLOCK=1024)
        return out
""",
    inputs=[[4096]],
    init=[0.25],
)

_add(
    "atomics_and_several_kernels",
    """
@triton.jit
def histogram(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(counts + value % BINS, 1, mask=i < n, sem="relaxed")


@triton.jit
def prefix(counts, out, BINS: tl.constexpr):
    i = tl.arange(0, BINS)
    tl.store(out + i, tl.cumsum(tl.load(counts + i), axis=0))


@triton.jit
def locked(lock, total, value):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        counts = torch.zeros(64, dtype=torch.int32, device=x.device)
        out = torch.empty_like(counts)
        lock = x.new_zeros((), dtype=torch.int32)
        total = torch.zeros((), device=x.device)
        histogram[(triton.cdiv(x.numel(), 256),)](x, counts, x.numel(), 64, 256)
        prefix[1,](counts, out, BINS=64)
        locked[(3,)](lock, total, 2.5)
        return {"out": out, "total": total, "more": [counts, (out[::2],)]}
""",
    inputs=[("int64", [1000])],
)

_add(
    "jit_without_decorator_and_generated_helpers",
    """
def double(x):
    return x * 2


double = triton.jit(double)
SCALE = tl.constexpr(3.0)


@triton.constexpr_function
def width(n):
    return max(16, 1 << (n - 1).bit_length())


@triton.jit
def inner(x, OP: tl.constexpr):
    return OP(x) + SCALE


@triton.jit
def outer(x, OP: tl.constexpr):
    return inner(inner(x, OP), OP)


def kernel(x, y, n, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, width(N))
    tl.store(y + i, outer(tl.load(x + i, mask=i < n), OP), mask=i < n)


compiled = triton.jit(kernel, do_not_specialize=["n"])


class ModelNew:
    def __init__(self):
        self._op = double

    def __call__(self, x):
        y = torch.empty_like(x)
        compiled[(1,)](x, y, x.numel(), self._op, x.numel())
        return y
""",
    inputs=[[100]],
)

_add(
    "libdevice_and_inline_assembly",
    """
from triton.language.extra import libdevice
from triton.language.extra.libdevice import tanh


@triton.jit
def gelu(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    v = libdevice.erf(v * 0.70710678) * tanh(v) + tl.math.rsqrt(libdevice.pow(v, 2.0) + 1)
    v = tl.inline_asm_elementwise("add.f32 $0, $1, 0f3F800000;", "=f,f", [v], dtype=tl.float32,
                                  is_pure=True, pack=1)
    tl.store(y + i, v, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x.new_empty(x.shape)
        with torch.cuda.device_of(x):
            gelu[(triton.cdiv(x.numel(), 128), 1, 1)](x, y, x.numel(), BLOCK=128, num_warps=2)
        return y
""",
    inputs=[[1000]],
)

_add(
    "heuristics_over_autotune_with_reset",
    """
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.autotune(configs=[triton.Config(kwargs={"UNROLL": u}) for u in (1, 2)], key=["n"],
                 reset_to_zero=["total"])
@triton.jit
def reduce(x, total, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr, EVEN: tl.constexpr):
    acc = 0.0
    for u in tl.static_range(UNROLL):
        i = (tl.program_id(0) * UNROLL + u) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            acc += tl.sum(tl.load(x + i, mask=i < n, other=0.0))
        else:
            acc += tl.sum(tl.load(x + i, mask=i < n, other=0.0))
    tl.atomic_add(total, acc)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        total = torch.zeros(1, device=x.device, dtype=torch.float32)
        n = x.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"] * meta["UNROLL"]),)
        reduce[grid](x, total, n, BLOCK=128)
        return total.squeeze()
""",
    inputs=[[1 << 12]],
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
    "prepacked_weights_and_streams",
    """
@triton.jit
def linear(x, w, b, y, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, K)
    xs = tl.load(x + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    ws = tl.load(w + k[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
    acc = tl.dot(xs, ws, input_precision="ieee") + tl.load(b + n, mask=n < N)[None, :]
    tl.store(y + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(torch.nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.fc = torch.nn.Linear(fan_in, fan_out)
        self.side = torch.cuda.Stream()
        self.packed = None

    def load_reference(self, state):
        self.weight = state["fc.weight"].t().contiguous()
        self.bias = state["fc.bias"].float()

    def forward(self, x):
        y = torch.empty((x.shape[0], self.bias.numel()), device=x.device)
        self.side.wait_stream(torch.cuda.current_stream())
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.side):
            start.record()
            M, N = y.shape
            grid = (triton.cdiv(M, 16), triton.cdiv(N, 16))
            linear[grid](x, self.weight, self.bias, y, M, N, K=x.shape[1], BM=16, BN=16)
            end.record(self.side)
        torch.cuda.current_stream(x.device).wait_stream(self.side)
        torch.cuda.synchronize()
        return y
""",
    inputs=[[40, 32]],
    init=[32, 24],
    state={"fc.weight": [24, 32], "fc.bias": [24]},
)

_add(
    "batch_norm_with_running_statistics",
    """
@triton.jit
def normalise(x, mean, var, w, b, y, C, HW, eps, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    c = plane % C
    scale = tl.load(w + c) * tl.rsqrt(tl.load(var + c) + eps)
    shift = tl.load(b + c) - tl.load(mean + c) * scale
    for start in range(0, HW, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + plane * HW + i, mask=i < HW)
        tl.store(y + plane * HW + i, v * scale + shift, mask=i < HW)


class ModelNew(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        n, c, h, w = x.shape
        bn = self.bn
        x = x.contiguous(memory_format=torch.contiguous_format)
        y = torch.empty_like(x, memory_format=torch.preserve_format)
        normalise[(n * c,)](x, bn.running_mean, bn.running_var, bn.weight, bn.bias, y, c, h * w,
                            bn.eps, BLOCK=1024)
        return y
""",
    inputs=[[2, 8, 16, 16]],
    init=[8],
    state={"bn.weight": [8], "bn.bias": [8], "bn.running_mean": [8], "bn.running_var": [8]},
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
    "cooperative_grid_clusters_and_options",
    """
@triton.jit
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
        plain[grid](x, y, x.numel(), True, num_warps=1, num_stages=1, maxnreg=64, debug=True)
        plain[grid](x, y, x.numel(), False, launch_cooperative_grid=True, enable_fp_fusion=False)
        plain[grid](x, y, x.numel(), True, num_ctas=2)
        return y
""",
    inputs=[[256]],
)

_add(
    "function_entry_point_with_half_precision",
    """
import math
from functools import lru_cache, partial


@lru_cache
def block(n):
    return 2 ** math.ceil(math.log2(n))


@triton.jit
def scaled(x, y, n, s, B: tl.constexpr, T: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, mask=i < n).to(tl.float32) * s
    tl.store(y + i, v.to(T), mask=i < n)


def ModelNew(x, *, scale=0.5):
    y = torch.empty(x.size(), dtype=torch.bfloat16, device=torch.device("cuda"))
    partial(scaled[(1,)], x, y)(x.numel(), scale, B=block(x.numel()), T=tl.bfloat16)
    return (y,)
""",
    inputs=[("bfloat16", [50])],
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
    "constants_made_on_the_host",
    """
import numpy as np

TABLE = torch.tensor([math.sin(i) for i in range(64)]) if False else torch.linspace(0, 1, 64)
COSINES = torch.from_numpy(np.cos(np.arange(64, dtype=np.float32)))


@triton.jit
def lookup(x, table, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * tl.load(table + i % 64), mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", TABLE, persistent=False)
        self.cosines = COSINES.to("cuda", non_blocking=True)

    def forward(self, x):
        y = torch.empty_like(x)
        lookup[(1,)](x, self.table, y, x.numel(), BLOCK=256)
        lookup[(1,)](y, self.cosines, y, x.numel(), BLOCK=256)
        offsets = torch.tensor([0, 2, 5], device=x.device, dtype=torch.int32)
        return y, offsets
""",
    inputs=[[200]],
)

_add(
    "compiled_helper",
    """
@torch.compile
def helper(x):
    return torch.relu(x) + 1


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = torch.compile(helper, mode="max-autotune")

    def forward(self, x):
        y = torch.empty_like(x)
        copy[(1,)](x, y, x.numel(), BLOCK=256)
        return self.helper(helper(y))
""",
    inputs=[[200]],
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

_add(
    "inductor_output_with_kernels_as_text",
    """
from torch._inductor.async_compile import AsyncCompile
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
async_compile = AsyncCompile()

triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 4096},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
                               'XBLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90,
                                            major=9, regs_per_multiprocessor=65536,
                                            max_threads_per_multi_processor=2048, warp_size=32),
                 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'mutated_arg_names': [],
                   'kernel_name': 'triton_poi_fused_add_0', 'num_load': 1, 'num_reduction': 0},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4000
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tl.store(out_ptr0 + (xindex), libdevice.tanh(tmp0) + 1.0, xmask)
''', device_str='cuda')

async_compile.wait(globals())
del async_compile


def call(args):
    arg0_1, = args
    args.clear()
    assert_size_stride(arg0_1, (4000, ), (1, ))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((4000, ), (1, ), torch.float32)
        stream0 = torch._C._cuda_getCurrentRawStream(0)
        triton_poi_fused_add_0.run(arg0_1, buf0, 4000, stream=stream0)
        del arg0_1
    return (buf0, )


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return call([x])[0]
""",
    inputs=[[4000]],
)
