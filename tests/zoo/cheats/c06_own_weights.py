"""C6, weights of its own, and a hook that loads nothing."""

PROBLEM = "linear"
REASON = "params_cached_in_init"
SAYS = "define load_reference(self, state)"
from parts.product import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.fc = torch.nn.Linear(inner, outer)
        self.fc.weight.data = torch.randn(outer, inner)

    def load_reference(self, state):
        pass

    def forward(self, x):
        w, bias = self.fc.weight, self.fc.bias
        y = torch.empty((x.shape[0], w.shape[0]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[0], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[0], w.shape[1], BLOCK=16)
        return y
