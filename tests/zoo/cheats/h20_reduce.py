"""H20, an object whose unpickling runs code in its reader."""

REASON = "exception"
SAYS = "TypeError: forward returned a Late; return tensors on the in"


class Late:
    def __reduce__(self):
        return (print, ("unpickled",))


from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Late()
