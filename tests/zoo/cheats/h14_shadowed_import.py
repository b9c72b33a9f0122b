"""H14, one name, imported twice in two scopes: a filter that keeps the last meaning is misled."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"

t = torch


def area():
    import math as t

    return t.pi


from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return t.compile(lambda x: t.relu(x) * 2)(x)
