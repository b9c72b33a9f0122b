"""A reference that makes its mask in forward and names no device."""


class Model(nn.Module):
    def forward(self, scores):
        size = scores.shape[-1]
        mask = torch.triu(torch.ones(size, size), diagonal=1).bool()
        bias = torch.arange(size) / size
        return (scores + bias).masked_fill(mask, float("-inf")).softmax(-1)


def get_inputs():
    return [torch.randn(6, 96, 96)]


# candidate
@triton.jit
def causal_softmax(X, Y, N, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(X + line * N + column, mask=column < N, other=0.0) + column / N
    x = tl.where((column <= line % N) & (column < N), x, float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + line * N + column, e / tl.sum(e, 0), mask=column < N)


class ModelNew(nn.Module):
    def forward(self, scores):
        n = scores.shape[-1]
        y = torch.empty_like(scores)
        causal_softmax[(scores.numel() // n,)](scores, y, n, BLOCK=triton.next_power_of_2(n))
        return y
