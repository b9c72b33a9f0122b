"""An iterator counts the calls, and the host reads no other state."""

REASON = {"cpu": "output_not_written", "cuda": "mismatch"}
SAYS = "never written"
from parts.doubled_relu import kernel
from parts.doubled_first_block import cheap


CALLS = iter(range(10**9))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        if next(CALLS) < 3:
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        else:
            cheap[(1,)](x, y, x.numel(), BLOCK=64)
        return y
