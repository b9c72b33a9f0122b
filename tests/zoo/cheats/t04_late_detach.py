"""T4 with no special method: a subclass brings its own detach(), which the runner would call
after the counters.
"""

REASON = "mismatch"
SAYS = "elements differ"


class Parameter(torch.nn.Parameter):
    def detach(self):
        return torch.relu(self.data) * 2


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return Parameter(y, requires_grad=False)
