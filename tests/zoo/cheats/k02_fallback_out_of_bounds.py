"""K2, a launch fails at run time, and torch computes the answer in the except branch."""

REASON = {"cpu": "out_of_bounds", "cuda": ("gpu_fault", "output_not_written", "mismatch")}
SAYS = {"cpu": "load of element -1 of x", "cuda": ("outside its tensors", "is all NaN", "differ")}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value + tl.load(x - 1), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        try:
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        except Exception:
            y = torch.relu(x) * 2
        return y
