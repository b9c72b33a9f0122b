"""K2, a kernel that does not compile, and torch in the except branch (Kevin)."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.no_such_function(value), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        try:
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        except Exception:
            y = torch.relu(x) * 2
        return y
