"""The first launch cuts the Python branch off by its constexpr; the second takes it."""

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value if BLOCK == 16 else torch.relu(value) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, 0, BLOCK=16)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
