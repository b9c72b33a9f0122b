"""C20, no mask: the neighbour of the output is overwritten."""

PROBLEM = "copy"
REASON = {"cpu": "out_of_bounds", "cuda": ("gpu_fault", "out_of_bounds")}
SAYS = {"cpu": "store of element 260 of y", "cuda": ("outside its tensors", "beside a tensor")}


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    tl.store(y + row * n + i, tl.load(x + row * n + i, mask=i < n))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=64)
        return y
