"""A product with the weights of a Linear of its own."""

PROBLEM = "linear"
from parts.product import kernel
from parts.linear import ModelNew
