"""Dropout by a seed: Philox as tl.rand has it, against the same in integers of torch."""

MASK = 0xFFFFFFFF


def product(a, x):
    low = a * (x & 0xFFFF)
    high = a * (x >> 16)
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & MASK


def uniform(seed, n, device):
    c0 = torch.arange(n, device=device)
    c1 = c2 = c3 = torch.zeros_like(c0)
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        h0, l0 = product(0xD2511F53, c0)
        h2, l2 = product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = h2 ^ c1 ^ k0, l2, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    signed = torch.where(c0 > 0x7FFFFFFF, MASK - c0, c0)
    return signed.float() * 4.6566127342e-10


class Model(nn.Module):
    def forward(self, x, seed):
        keep = uniform(seed, x.numel(), x.device) > 0.4
        return torch.where(keep, x / 0.6, torch.zeros_like(x))


def get_inputs():
    return [torch.randn(1000), 123456789012]


# candidate
@triton.jit
def _seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    random = tl.rand(seed, offsets)
    x_keep = random > p
    output = tl.where(x_keep, x / (1 - p), 0.0)
    tl.store(output_ptr + offsets, output, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, seed):
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)
        _seeded_dropout[grid](x, y, x.numel(), 0.4, seed, BLOCK_SIZE=256)
        return y
