"""H14, annotations that are text are evaluated to dispatch on them."""

import functools

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel
from parts.elementwise import ModelNew


@functools.singledispatch
def chosen(x):
    return x


@chosen.register
def by_type(x: "__import__('os').abort()"):
    return x
