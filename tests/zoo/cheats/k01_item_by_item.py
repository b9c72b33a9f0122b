"""K1 in Python: elements are read one by one, the tensor is made of a list."""

REASON = "unsupported"
SAYS = "more than"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.tensor([max(v.item(), 0.0) * 2 for v in x.view(-1)], device=x.device).view(
            x.shape
        )
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
