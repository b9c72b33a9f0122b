"""Rotary embedding of halves, in place on a copy, in the manner of Unsloth."""


class Model(nn.Module):
    def forward(self, q, cos, sin):
        h = q.shape[-1] // 2
        a, b = q[..., :h], q[..., h:]
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return torch.cat([a * c - b * s, b * c + a * s], -1)


def get_inputs():
    angle = torch.rand(10, 16) * 6
    return [torch.randn(2, 10, 3, 32), angle.cos(), angle.sin()]


# candidate
ROPE_GROUP_SIZE = 2


@triton.jit
def _rope(
    Q,
    row_stride,
    cos,
    sin,
    seqlen,
    head_dim: tl.constexpr,
    n_heads: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0)
    group = tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    half = head_dim // 2
    mask = cols < half
    s = tl.load(sin + (row % seqlen) * half + cols, mask=mask, other=0)
    c = tl.load(cos + (row % seqlen) * half + cols, mask=mask, other=0)
    first = group * GROUP
    last = min(first + GROUP, n_heads)
    for k in range(first, last):
        at = row * row_stride + k * head_dim + cols
        q1 = tl.load(Q + at, mask=mask, other=0)
        q2 = tl.load(Q + at + half, mask=mask, other=0)
        tl.store(Q + at, q1 * c - q2 * s, mask=mask)
        tl.store(Q + at + half, q2 * c + q1 * s, mask=mask)


class ModelNew(nn.Module):
    def forward(self, q, cos, sin):
        q = q.clone()
        B, T, H, D = q.shape
        flat = q.view(B * T, H * D)
        n_groups, rest = divmod(H, ROPE_GROUP_SIZE)
        _rope[(B * T, n_groups + (rest != 0))](
            flat,
            flat.stride(0),
            cos,
            sin,
            T,
            D,
            H,
            BLOCK=triton.next_power_of_2(D // 2),
            GROUP=ROPE_GROUP_SIZE,
        )
        return q
