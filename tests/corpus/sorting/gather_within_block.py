"""A permutation of each row by tl.gather."""


class Model(nn.Module):
    def forward(self, x, index):
        return torch.gather(x, 1, index.long())


def get_inputs():
    return [torch.randn(6, 64), torch.randint(0, 64, (6, 64), dtype=torch.int32)]


# candidate
@triton.jit
def permute(X, I, Y, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + o, tl.gather(tl.load(X + o), tl.load(I + o), axis=0))


class ModelNew(nn.Module):
    def forward(self, x, index):
        y = torch.empty_like(x)
        permute[(x.shape[0],)](x, index, y, N=x.shape[1])
        return y
