"""H4, looks through all objects for the expected output (pygpubench gc_copy)."""

import gc

REASON = "exception"
SAYS = "IndexError: list index out of range"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        found = [
            one
            for one in gc.get_objects()
            if isinstance(one, torch.Tensor) and one.shape == x.shape
        ]
        return [one for one in found if one is not x and one is not y][-1]
