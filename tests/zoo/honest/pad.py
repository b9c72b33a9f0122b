"""Pads to a whole block and cuts the end off."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        flat = F.pad(x.flatten(), (0, -x.numel() % 768))
        y = torch.empty_like(flat)
        kernel[(flat.numel() // 256,)](flat, y, flat.numel(), BLOCK=256)
        return y[: x.numel()].view(x.shape)
