"""A length read on the host decides the grid."""


class Model(nn.Module):
    def forward(self, x, length):
        return x[: int(length)] * 2.0


def get_inputs():
    return [torch.randn(64), torch.tensor(48)]


# candidate
@triton.jit
def double(X, Y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i, mask=i < n) * 2.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, length):
        n = length.item()
        y = torch.empty(n, device=x.device)
        double[(triton.cdiv(n, 32),)](x, y, n, BLOCK=32)
        return y
