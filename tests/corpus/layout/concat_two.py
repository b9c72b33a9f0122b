"""Concatenation of two tensors along the last axis, written by one kernel."""


class Model(nn.Module):
    def forward(self, a, b):
        return torch.cat([a, b], -1)


def get_inputs():
    return [torch.randn(9, 20), torch.randn(9, 13)]


# candidate
@triton.jit
def concat(A, B, Y, NA, NB, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    a = tl.load(A + r * NA + c, mask=c < NA, other=0.0)
    b = tl.load(B + r * NB + c - NA, mask=(c >= NA) & (c < NA + NB), other=0.0)
    tl.store(Y + r * (NA + NB) + c, tl.where(c < NA, a, b), mask=c < NA + NB)


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty((a.shape[0], a.shape[1] + b.shape[1]), device=a.device)
        concat[(a.shape[0],)](a, b, y, a.shape[1], b.shape[1], BLOCK=64)
        return y
