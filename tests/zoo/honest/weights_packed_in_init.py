"""Transposes its weight in __init__, from a layer made as the reference makes it."""

PROBLEM = "linear"
from parts.packed_product import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.fc = torch.nn.Linear(inner, outer)
        self.packed = self.fc.weight.detach().t().contiguous()

    def forward(self, x):
        w, bias = self.packed.to(x.device), self.fc.bias
        y = torch.empty((x.shape[0], w.shape[1]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[1], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[1], w.shape[0], BLOCK=16)
        return y
