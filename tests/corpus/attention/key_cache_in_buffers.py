"""Decoding with keys and values that Model keeps in buffers and updates in place."""


class Model(nn.Module):
    def __init__(self, batch, length, heads, dim):
        super().__init__()
        self.register_buffer("keys", torch.zeros(batch, heads, length, dim))
        self.register_buffer("values", torch.zeros(batch, heads, length, dim))

    def forward(self, q, k, v):
        n = k.shape[2]
        self.keys[:, :, -n:] = k
        self.values[:, :, -n:] = v
        scores = torch.einsum("bhd,bhtd->bht", q, self.keys) / q.shape[-1] ** 0.5
        return torch.einsum("bht,bhtd->bhd", scores.softmax(-1), self.values)


def get_inputs():
    return [torch.randn(2, 3, 16), torch.randn(2, 3, 2, 16), torch.randn(2, 3, 2, 16)]


def get_init_inputs():
    return [2, 37, 3, 16]


# candidate
@triton.jit
def decode(
    q_ptr, k_ptr, v_ptr, keys, values, out, scale, T, NEW: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    t = tl.arange(0, BLOCK)
    is_new = (t >= T - NEW) & (t < T)
    news = head * NEW * D + (t - (T - NEW))[:, None] * D + d[None, :]
    olds = head * T * D + t[:, None] * D + d[None, :]
    is_old = (t < T - NEW)[:, None]
    k_new = tl.load(k_ptr + news, mask=is_new[:, None], other=0.0)
    v_new = tl.load(v_ptr + news, mask=is_new[:, None], other=0.0)
    k = tl.where(is_old, tl.load(keys + olds, mask=is_old, other=0.0), k_new)
    v = tl.where(is_old, tl.load(values + olds, mask=is_old, other=0.0), v_new)
    tl.store(keys + olds, k_new, mask=is_new[:, None])
    tl.store(values + olds, v_new, mask=is_new[:, None])
    q = tl.load(q_ptr + head * D + d)
    scores = tl.where(t < T, tl.sum(k * q[None, :], 1) * scale, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    weights /= tl.sum(weights, 0)
    tl.store(out + head * D + d, tl.sum(weights[:, None] * v, 0))


class ModelNew(nn.Module):
    def __init__(self, batch, length, heads, dim):
        super().__init__()
        self.register_buffer("keys", torch.zeros(batch, heads, length, dim))
        self.register_buffer("values", torch.zeros(batch, heads, length, dim))

    def forward(self, q, k, v):
        batch, heads, dim = q.shape
        length = self.keys.shape[2]
        out = torch.empty_like(q)
        decode[(batch * heads,)](
            q,
            k.contiguous(),
            v.contiguous(),
            self.keys,
            self.values,
            out,
            dim**-0.5,
            length,
            NEW=k.shape[2],
            D=dim,
            BLOCK=triton.next_power_of_2(length),
        )
        return out
