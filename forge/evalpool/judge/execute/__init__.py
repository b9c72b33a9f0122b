"""Runs programs: on a GPU through the driver, on a CPU through the evaluator of TTIR.

Our code alone, in processes that hold no seed, no expected output and no verdict. Called by the
judge. Never imports `capture`.
"""
