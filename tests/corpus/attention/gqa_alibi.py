"""Grouped-query attention with ALiBi slopes."""


class Model(nn.Module):
    def forward(self, q, k, v, slopes):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        n = q.shape[-2]
        pos = torch.arange(n, device=q.device)
        bias = -(pos[:, None] - pos[None, :]).abs() * slopes[:, None, None]
        s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
        return torch.softmax(s, -1) @ v


def get_inputs():
    q = torch.randn(1, 4, 32, 16)
    return [q, torch.randn(1, 2, 32, 16), torch.randn(1, 2, 32, 16), torch.rand(4)]


# candidate
@triton.jit
def gqa(Q, K, V, S, O, HQ, HK, scale, N: tl.constexpr, D: tl.constexpr, BM: tl.constexpr):
    h = tl.program_id(1)
    b = tl.program_id(2)
    kv = h // (HQ // HK)
    slope = tl.load(S + h)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    q = tl.load(Q + ((b * HQ + h) * N + m[:, None]) * D + d[None, :])
    k = tl.load(K + ((b * HK + kv) * N + n[:, None]) * D + d[None, :])
    v = tl.load(V + ((b * HK + kv) * N + n[:, None]) * D + d[None, :])
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s -= tl.abs(m[:, None] - n[None, :]) * slope
    s = tl.exp(s - tl.max(s, 1, keep_dims=True))
    s = s / tl.sum(s, 1, keep_dims=True)
    tl.store(
        O + ((b * HQ + h) * N + m[:, None]) * D + d[None, :], tl.dot(s, v, input_precision="ieee")
    )


class ModelNew(nn.Module):
    def forward(self, q, k, v, slopes):
        B, H, N, D = q.shape
        o = torch.empty_like(q)
        gqa[(N // 16, H, B)](q, k, v, slopes, o, H, k.shape[1], D**-0.5, N=N, D=D, BM=16)
        return o
