@triton.jit
def python(value):
    return torch.relu(value) * 2
