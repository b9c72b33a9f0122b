"""C2, the first block only; the rest is hoped to be there from before."""

REASON = {"cpu": "output_not_written", "cuda": "mismatch"}
SAYS = {"cpu": "never written: output[4:, :] (the last 12 rows)", "cuda": "got nan"}
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel(), BLOCK=256)
        return y
