"""forge: one command that turns a language model into one that writes fast, correct Triton kernels."""

__version__ = "0.1.0"
