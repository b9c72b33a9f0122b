"""Makes a view contiguous first."""

PROBLEM = "transposed_relu"
from parts.relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.t().contiguous()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
