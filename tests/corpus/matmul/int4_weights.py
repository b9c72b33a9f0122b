"""Product with 4-bit weights packed in int32, unpacked by shifts, with group scales."""


class Model(nn.Module):
    def forward(self, x, packed, scales):
        shifts = torch.arange(8, device=x.device) * 4
        w = (packed[:, None, :] >> shifts[None, :, None]) & 15
        w = w.reshape(-1, packed.shape[1]).float() - 8
        return x @ (w * scales.repeat_interleave(32, 0))


def get_inputs():
    packed = torch.randint(-(2**31), 2**31 - 1, (8, 32), dtype=torch.int32)
    return [torch.randn(16, 64), packed, torch.rand(2, 32)]


# candidate
@triton.jit
def w4_matmul(
    X, W, S, Y, N, K, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(X + rm[:, None] * K + k[None, :])
        w = tl.load(W + (k // 8)[:, None] * N + rn[None, :])
        w = ((w >> ((k % 8) * 4)[:, None]) & 0xF) - 8
        s = tl.load(S + (k // GROUP)[:, None] * N + rn[None, :])
        acc += tl.dot(x, w.to(tl.float32) * s, input_precision="ieee")
    tl.store(Y + rm[:, None] * N + rn[None, :], acc)


class ModelNew(nn.Module):
    def forward(self, x, packed, scales):
        M, K = x.shape
        N = packed.shape[1]
        y = torch.empty((M, N), device=x.device)
        w4_matmul[(M // 16, N // 32)](x, packed, scales, y, N, K, GROUP=32, BM=16, BN=32, BK=32)
        return y
