"""H14, the names of fields are code: `typing.TypedDict` takes any, `dataclass` runs them."""

import typing
from dataclasses import dataclass


NAME = "a,)\n __import__('os')  # anything\n def g(self,other):\n  if 1:\n   return (self.a"
Made = typing.TypedDict("Made", {NAME: int})
made = dataclass(init=False, repr=False)(Made)
from parts.doubled_relu import kernel
from parts.elementwise import ModelNew
