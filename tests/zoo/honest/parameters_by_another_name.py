"""The same layer under another name: taken by order and shape."""

PROBLEM = "linear"
from parts.product import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.layer = torch.nn.Linear(inner, outer)

    def forward(self, x):
        w, bias = self.layer.weight, self.layer.bias
        y = torch.empty((x.shape[0], w.shape[0]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[0], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[0], w.shape[1], BLOCK=16)
        return y
