"""T1 with the current stream itself replaced for good."""

REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.cuda.set_stream(torch.cuda.Stream())
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
