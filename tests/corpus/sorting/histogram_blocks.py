"""Histogram of integers: tl.histogram in blocks and atomic additions."""


class Model(nn.Module):
    def forward(self, x):
        bins = torch.arange(32, device=x.device)
        return (x[None, :] == bins[:, None]).sum(1).to(torch.int32)


def get_inputs():
    return [torch.randint(0, 32, (1000,), dtype=torch.int32)]


# candidate
@triton.jit
def histogram(X, H, N, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < N, other=0)
    # Triton leaves open where a number outside of the bins is counted: 3.6 takes its low bits
    h = tl.histogram(x, BINS, mask=(i < N) & (x >= 0) & (x < BINS))
    b = tl.arange(0, BINS)
    tl.atomic_add(H + b, h, mask=h > 0)


class ModelNew(nn.Module):
    def forward(self, x):
        h = torch.zeros(32, dtype=torch.int32, device=x.device)
        histogram[(triton.cdiv(x.numel(), 256),)](x, h, x.numel(), BINS=32, BLOCK=256)
        return h
