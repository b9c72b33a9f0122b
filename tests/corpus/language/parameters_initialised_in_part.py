"""Token embedding with a padding row, times a gain: constructors that initialise parts in place."""


class Model(nn.Module):
    def __init__(self, num_tokens, dim):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, dim, padding_idx=0)
        self.gain = nn.Parameter(torch.randn(dim))
        with torch.no_grad():
            self.gain.mul_(0.1)
            self.gain[: dim // 2] = 1.0

    def forward(self, tokens):
        return self.embedding(tokens) * self.gain


def get_inputs():
    return [torch.randint(0, 23, (5, 14))]


def get_init_inputs():
    return [23, 36]


# candidate
@triton.jit
def embed_kernel(tokens, table, gain, out, dim, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    token = tl.load(tokens + at)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    row = tl.load(table + token * dim + columns, mask=inside)
    factor = tl.load(gain + columns, mask=inside)
    tl.store(out + at * dim + columns, row * factor, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, num_tokens, dim):
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, dim, padding_idx=0)
        self.gain = nn.Parameter(torch.randn(dim))
        with torch.no_grad():
            self.gain.mul_(0.1)
            self.gain[: dim // 2] = 1.0

    def forward(self, tokens):
        tokens = tokens.contiguous()
        dim = self.embedding.embedding_dim
        out = torch.empty((*tokens.shape, dim), device=tokens.device)
        block = triton.next_power_of_2(dim)
        embed_kernel[(tokens.numel(),)](
            tokens, self.embedding.weight, self.gain, out, dim, BLOCK=block
        )
        return out
