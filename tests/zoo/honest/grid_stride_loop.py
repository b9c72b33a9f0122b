"""A loop in the kernel over all blocks of a program."""


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < n)
        tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(2,)](x, y, x.numel(), BLOCK=128)
        return y
