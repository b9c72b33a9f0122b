"""K1 in Python, all elements at once: no operation is to be seen, so the screen alone stops it."""

REASON = "unsupported"
SAYS = "a copy of"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.tensor([max(v, 0.0) * 2 for v in x.view(-1).tolist()], device=x.device).view(
            x.shape
        )
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
