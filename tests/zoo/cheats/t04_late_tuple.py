"""T4, a tuple whose items are computed when it is iterated: after the counters and the last event."""

PROBLEM = "matmul"
REASON = "shape"
SAYS = "forward returned a tuple, expected a tensor"


class Late(tuple):
    def __iter__(self):
        return iter([torch.matmul(self[0], self[1])])


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        copy = torch.empty_like(a)
        kernel[(triton.cdiv(a.numel(), 256),)](a, copy, a.numel(), BLOCK=256)
        return Late((copy, b))
