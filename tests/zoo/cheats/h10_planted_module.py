"""H10, replaces torch for all who import it later (pygpubench replace_torch)."""

REASON = "exception"
SAYS = "OSError: [Errno 30] Read-only file syste"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        open(torch.__file__, "w").write("raise SystemExit")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
