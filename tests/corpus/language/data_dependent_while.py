"""A while loop whose number of turns differs between programs: Newton's square root."""


class Model(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


def get_inputs():
    return [torch.rand(40) * 1000 + 0.5]


# candidate
@triton.jit
def newton(X, Y):
    i = tl.program_id(0)
    x = tl.load(X + i)
    g = x
    steps = 0
    while (tl.abs(g * g - x) > 1e-6 * x) & (steps < 50):
        g = 0.5 * (g + x / g)
        steps += 1
    tl.store(Y + i, g)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        newton[(x.numel(),)](x, y)
        return y
