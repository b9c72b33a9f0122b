"""KL divergence of log-probabilities, batch mean by atomics."""

import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, p, q):
        return F.kl_div(torch.log_softmax(p, -1), torch.softmax(q, -1), reduction="batchmean")


def get_inputs():
    return [torch.randn(16, 40), torch.randn(16, 40)]


# candidate
@triton.jit
def log_softmax_row(x):
    z = x - tl.max(x, 0)
    return z - tl.log(tl.sum(tl.exp(z), 0))


@triton.jit
def kl(P, Q, out, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < cols
    p = log_softmax_row(tl.load(P + row * cols + c, mask=m, other=float("-inf")))
    q = log_softmax_row(tl.load(Q + row * cols + c, mask=m, other=float("-inf")))
    term = tl.where(m, tl.exp(q) * (q - p), 0.0)
    tl.atomic_add(out, tl.sum(term, 0) / rows)


class ModelNew(nn.Module):
    def forward(self, p, q):
        out = torch.zeros((), device=p.device)
        rows, cols = p.shape
        kl[(rows,)](p, q, out, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return out
