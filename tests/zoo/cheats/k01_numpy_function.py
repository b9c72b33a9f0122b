"""K1 in numpy without .numpy(): its functions take tensors."""

import numpy as np

REASON = "exception"
SAYS = "RuntimeError: .numpy() is not supported for tensor subclasse"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = np.maximum(x, 0.0) + np.maximum(x, 0.0)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
