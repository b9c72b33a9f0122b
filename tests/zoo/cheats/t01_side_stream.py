"""T1, work on a side stream (a third of CUDA-L1's outputs, fake 18x): events on the current
stream see nothing of it. Nobody waits for the stream, so the answer is read before it is
there.
"""

PROBLEM = "relu_large"
DEVICES = ("cuda",)
REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(200):
                kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
