"""L2 normalisation along the first axis, by columns."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=0)


def get_inputs():
    return [torch.randn(90, 50)]


# candidate
@triton.jit
def normalize(x_ptr, y_ptr, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((BC,), tl.float32)
    for r0 in tl.range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        m = (r[:, None] < rows) & (c[None, :] < cols)
        x = tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=m, other=0.0)
        total += tl.sum(x * x, axis=0)
    norm = tl.maximum(tl.sqrt(total), 1e-12)
    for r0 in tl.range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        m = (r[:, None] < rows) & (c[None, :] < cols)
        offs = r[:, None] * cols + c[None, :]
        tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=m) / norm[None, :], mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        normalize[(triton.cdiv(x.shape[1], 16),)](x, y, *x.shape, BR=32, BC=16)
        return y
