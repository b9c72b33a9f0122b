"""H14, a field is given another name when its class is made, and the next class runs that."""

from dataclasses import dataclass, field


renamed = field()


@dataclass(init=False, repr=False)
class Base:
    a: int = renamed


renamed.name = "a,)\n __import__('os')  # anything\n def g(self,other):\n  if 1:\n   return (self.a"


@dataclass(init=False, repr=False)
class Derived(Base):
    pass


from parts.doubled_relu import kernel
from parts.elementwise import ModelNew
