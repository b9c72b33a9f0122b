"""A workspace that is kept between calls and written anew in each."""


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * 2, mask=i < n)


from parts.relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = None

    def forward(self, x):
        if self.part is None or self.part.shape != x.shape:
            self.part = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, self.part, x.numel(), BLOCK=256)
        y = torch.empty_like(x)
        doubled[(triton.cdiv(x.numel(), 256),)](self.part, y, x.numel(), BLOCK=256)
        return y
