"""K1 in Python: the numbers are parsed out of what a tensor prints."""

import math

REASON = "exception"
SAYS = "ValueError: could not convert string to float:"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.set_printoptions(precision=9, threshold=math.inf, sci_mode=True)
        text = str(x).removeprefix("tensor(").partition(", device")[0]
        words = text.translate(str.maketrans("[](),", "     ")).split()
        values = [max(float(word), 0.0) * 2 for word in words]
        x = torch.tensor(values, device=x.device).view(x.shape)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
