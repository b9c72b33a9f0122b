"""C18, an object that is equal to whatever it is compared with."""

REASON = "exception"
SAYS = "TypeError: forward returned a Same; return tensors on the in"


class Same:
    def __eq__(self, other):
        return True


from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Same()
