"""Transposes its weight once, when it gets the parameters."""

PROBLEM = "linear"
from parts.packed_product import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.fc = torch.nn.Linear(inner, outer)
        self.packed = torch.nn.Parameter(torch.empty(inner, outer))

    def load_reference(self, state):
        self.fc.load_state_dict({"weight": state["fc.weight"], "bias": state["fc.bias"]})
        self.packed.copy_(state["fc.weight"].t())

    def forward(self, x):
        w, bias = self.packed, self.fc.bias
        y = torch.empty((x.shape[0], w.shape[1]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[1], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[1], w.shape[0], BLOCK=16)
        return y
