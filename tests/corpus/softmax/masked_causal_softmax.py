"""Scaled causal softmax of attention scores, as Unsloth and Megatron have it."""


class Model(nn.Module):
    def forward(self, x, scale):
        n = x.shape[-1]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        return torch.softmax((x * scale).masked_fill(mask, float("-inf")), -1)


def get_inputs():
    return [torch.randn(2, 3, 24, 24), 0.3]


# candidate
@triton.jit
def causal_softmax(X, Y, scale, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    query = row % N
    k = tl.arange(0, BLOCK)
    visible = k <= query
    x = tl.load(X + row * N + k, mask=visible, other=float("-inf")) * scale
    x = tl.where(visible, x, float("-inf"))
    e = tl.exp2((x - tl.max(x, 0)) * 1.4426950408889634)
    tl.store(Y + row * N + k, e / tl.sum(e, 0), mask=k < N)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        y = torch.empty_like(x)
        N = x.shape[-1]
        causal_softmax[(x.numel() // N,)](x, y, scale, N=N, BLOCK=triton.next_power_of_2(N))
        return y
