"""Asks the card for its number of processors, where there is one."""

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        count = 1
        if torch.cuda.is_available():
            count = torch.cuda.get_device_properties(x.device).multi_processor_count
        y = torch.empty_like(x)
        kernel[(max(count, triton.cdiv(x.numel(), 256)),)](x, y, x.numel(), BLOCK=256)
        return y
