"""Commands that show what a model can do and take its kernels out: eval, kernels export.

Imported by the command line. Each command calls a function of another room when it runs.
"""
