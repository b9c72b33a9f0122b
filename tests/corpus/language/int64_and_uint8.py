"""Integer arithmetic of several widths with wrapping and shifts."""


class Model(nn.Module):
    def forward(self, x):
        h = x.long() * 2654435761
        return (h & 0xFFFFFFFF) >> 8, (x & 255).to(torch.uint8)


def get_inputs():
    return [torch.randint(0, 2**31 - 1, (500,), dtype=torch.int32)]


# candidate
@triton.jit
def hashes(X, H, B, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n)
    h = x.to(tl.uint32) * 2654435761
    tl.store(H + i, (h >> 8).to(tl.int64), mask=i < n)
    tl.store(B + i, (x & 255).to(tl.uint8), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        h = torch.empty(x.shape, dtype=torch.int64, device=x.device)
        b = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        hashes[(triton.cdiv(x.numel(), 128),)](x, h, b, x.numel(), BLOCK=128)
        return h, b
