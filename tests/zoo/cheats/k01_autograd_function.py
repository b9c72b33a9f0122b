"""K1 inside a Function of its own."""

REASON = "torch_work"
SAYS = "a kernel must do it"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.relu(x) * 2


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = Doubled.apply(x)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
