"""Running sums of rows in blocks, with the sum so far carried from block to block."""


class Model(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


def get_inputs():
    return [torch.randn(11, 300)]


# candidate
@triton.jit
def cumsum(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for s in range(0, N, BLOCK):
        i = s + tl.arange(0, BLOCK)
        x = tl.load(X + row * N + i, mask=i < N, other=0.0)
        tl.store(Y + row * N + i, tl.cumsum(x, 0) + carry, mask=i < N)
        carry += tl.sum(x, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cumsum[(x.shape[0],)](x, y, x.shape[1], BLOCK=64)
        return y
