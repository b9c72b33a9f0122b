"""T4, a tensor that computes when it is looked at (CUDA-L1 issue 12, 600x)."""

REASON = "exception"
SAYS = "RuntimeError: Creating a new Tensor subclass Lazy but the ra"


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.zeros(16, 64)


from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.empty_like(x).as_subclass(Lazy)
