"""Largest magnitude of a tensor by atomic maxima, as quantisers need it."""


class Model(nn.Module):
    def forward(self, x):
        return x.abs().max()


def get_inputs():
    return [torch.randn(40, 60)]


# candidate
@triton.jit
def amax(X, Y, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.abs(tl.load(X + i, mask=i < N, other=0.0))
    tl.atomic_max(Y, tl.max(x, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros((), device=x.device)
        amax[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), BLOCK=512)
        return y
