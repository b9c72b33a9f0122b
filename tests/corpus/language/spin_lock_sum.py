"""Sums of columns under a spin lock, as in the layer-norm tutorial."""


class Model(nn.Module):
    def forward(self, x):
        return x.sum(0)


def get_inputs():
    return [torch.randn(24, 30)]


# candidate
@triton.jit
def locked(X, Y, Lock, Count, C, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(X + r * C + c, mask=c < C, other=0.0)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        x += tl.load(Y + c, mask=c < C)
    tl.store(Y + c, x, mask=c < C)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1], device=x.device)
        state = torch.zeros(2, dtype=torch.int32, device=x.device)
        locked[(x.shape[0],)](x, y, state, state[1:], x.shape[1], BLOCK=32)
        return y
