"""The grid is handed the arguments as they will be used, and puts others in their place."""

REASON = "mismatch"
SAYS = "elements differ"


@triton.jit
def kernel(x, y, n, helper: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, helper(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def honest(value):
    return value


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)

        def grid(meta):
            meta["helper"] = lambda value: tl.maximum(value, max([0.0 for _ in range(3)])) * 2
            return (triton.cdiv(x.numel(), 256),)

        kernel[grid](x, y, x.numel(), honest, BLOCK=256)
        return y
