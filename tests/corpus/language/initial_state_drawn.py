"""A state that the constructor draws, no parameter and no buffer, which forward replaces."""


class Model(nn.Module):
    def __init__(self, width, rows):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width))
        self.hidden = torch.randn(rows, width)

    def forward(self, x):
        self.hidden = self.hidden.to(x.device)
        self.hidden = torch.sigmoid(self.decay) * self.hidden + x
        return self.hidden * 2.0


def get_inputs():
    return [torch.randn(24, 160)]


def get_init_inputs():
    return [160, 24]


# candidate
@triton.jit
def step(X, HIDDEN, DECAY, Y, N, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < N
    place = row * N + column
    decay = tl.sigmoid(tl.load(DECAY + column, mask=inside))
    hidden = decay * tl.load(HIDDEN + place, mask=inside) + tl.load(X + place, mask=inside)
    tl.store(Y + place, hidden * 2.0, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width, rows):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width))
        self.hidden = torch.randn(rows, width)

    def forward(self, x):
        y = torch.empty_like(x)
        step[(x.shape[0],)](x, self.hidden, self.decay, y, x.shape[1], BLOCK=256)
        return y
