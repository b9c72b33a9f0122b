"""T8, a captured graph reads what lay at an address of its own when it was captured
(kernelbench.com).
"""

REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, x):
        if self.graph is None:
            self.x, self.y = x.clone(), torch.empty_like(x)
            x, y = self.x, self.y
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        self.graph.replay()
        return self.y
