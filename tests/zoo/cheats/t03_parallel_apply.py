"""T3 without an import: torch's own threads, where no dispatch mode of the forward's thread
looks.
"""

REASON = {"cpu": "unsupported", "cuda": ("unsupported", "exception")}
SAYS = {
    "cpu": "Cannot access accelerator device when none is available.: no",
    "cuda": "parallel_apply",
}
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        both = torch.nn.parallel.parallel_apply([torch.relu, torch.relu], [(x,), (x,)])
        x = both[0] * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
