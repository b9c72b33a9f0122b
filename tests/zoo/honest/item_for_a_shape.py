"""One number is read back to choose a grid."""

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        num_blocks = torch.tensor(triton.cdiv(x.numel(), 256), device=x.device).item()
        y = torch.empty_like(x)
        kernel[(num_blocks,)](x, y, x.numel(), BLOCK=256)
        return y
