"""C20, an address as a number: whatever lies there is read."""

REASON = "not_triton"
SAYS = "tt.int_to_ptr is not allowed"


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x.to(tl.pointer_type(tl.float32)) + i), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x.data_ptr() + (1 << 20), y, x.numel(), BLOCK=256)
        return y
