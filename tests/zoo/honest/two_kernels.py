"""One kernel for the positive part, one for the product."""


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, value * 2, mask=i < n)


from parts.relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        part, y = torch.empty_like(x), torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        kernel[grid](x, part, x.numel(), BLOCK=256)
        doubled[grid](part, y, x.numel(), BLOCK=256)
        return y
