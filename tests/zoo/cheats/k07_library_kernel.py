"""K7, the kernel of a library."""

from flash_attn import flash_attn_func

REASON = "import_error"
SAYS = "ModuleNotFoundError: No module named"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return flash_attn_func(x, x, x)
