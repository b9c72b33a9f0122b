"""Dropout with a mask of booleans and a scale."""


class Model(nn.Module):
    def forward(self, x, keep):
        return torch.where(keep, x / 0.7, torch.zeros_like(x))


def get_inputs():
    return [torch.randn(900), torch.rand(900) < 0.7]


# candidate
@triton.jit
def _dropout(x_ptr, keep_ptr, y_ptr, n, p, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.load(keep_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, keep):
        y = torch.empty_like(x)
        _dropout[(triton.cdiv(x.numel(), 256),)](x, keep, y, x.numel(), 0.3, BLOCK_SIZE=256)
        return y
