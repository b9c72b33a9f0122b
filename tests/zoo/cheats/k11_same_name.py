"""Two kernels of one name: the first compiles, the second is Python and runs."""

REASON = "not_triton"
SAYS = "Triton cannot compile Unsupported"
from parts.copied import kernel


first = kernel


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, torch.relu(value) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        first[(1,)](x, y, 0, BLOCK=256)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
