"""Product by tensor descriptors made on the device."""


class Model(nn.Module):
    def forward(self, a, b):
        return (a.float() @ b.float()).half()


def get_inputs():
    return [torch.randn(64, 64).half(), torch.randn(64, 64).half()]


# candidate
from typing import Optional


@triton.jit
def matmul_tma(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a_desc.load([m, k]), b_desc.load([k, n]), acc)
    c_desc.store([m, n], acc.to(tl.float16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        def alloc(size: int, alignment: int, stream: Optional[int]):
            return torch.empty(size, device=a.device, dtype=torch.int8)

        triton.set_allocator(alloc)
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        matmul_tma[(M // 32, N // 32)](a, b, c, M, N, K, BM=32, BN=32, BK=32)
        return c
