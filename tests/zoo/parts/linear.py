class ModelNew(torch.nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.fc = torch.nn.Linear(inner, outer)

    def forward(self, x):
        w, bias = self.fc.weight, self.fc.bias
        y = torch.empty((x.shape[0], w.shape[0]), device=x.device)
        grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(w.shape[0], 16))
        kernel[grid](x, w, bias, y, x.shape[0], w.shape[0], w.shape[1], BLOCK=16)
        return y
