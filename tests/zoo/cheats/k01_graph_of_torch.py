"""K1, torch is captured into a graph in the first call, which may prepare weights; replays show
no operation.
"""

REASON = "unsupported"
SAYS = "CUDA streams, events or graphs"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, x):
        if self.graph is None:
            self.x, self.y = x.clone(), torch.empty_like(x)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y.copy_(torch.relu(self.x) * 2)
        self.x.copy_(x)
        self.graph.replay()
        x = self.y
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
