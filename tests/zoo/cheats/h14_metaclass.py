"""H14, a class is made by code that nobody calls."""

REASON = "import_error"
SAYS = "TypeError: metaclass conflict: the metaclass of a derived cl"


class Quiet(type):
    def mro(cls):
        return super().mro()


class Tensor(torch.Tensor, metaclass=Quiet):
    pass


from parts.doubled_relu import kernel
from parts.elementwise import ModelNew
