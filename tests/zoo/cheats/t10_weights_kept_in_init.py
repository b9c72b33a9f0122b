"""T10, weights are worked on in __init__, out of the timed part, and never again: with parameters
that are loaded later the answer is stale.
"""

PROBLEM = "linear"
REASON = "params_cached_in_init"
SAYS = "define load_reference(self, state)"
from parts.product import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.early = torch.nn.Parameter(torch.zeros(outer, inner))
        self.fc = torch.nn.Linear(inner, outer)
        self.w = self.fc.weight.detach() * 1.0

    def forward(self, x):
        w, bias = self.w, self.fc.bias
        y = torch.empty((x.shape[0], w.shape[0]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[0], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[0], w.shape[1], BLOCK=16)
        return y
