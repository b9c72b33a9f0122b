"""Runs programs: on a GPU through the driver, on a CPU through the evaluator of TTIR.

Our code alone, in processes that hold no seed, no expected output and no verdict. Called by the
judge, whose side of the GPU executor is `executors.py`; its process is the room `gpu`. Never
imports `capture`.
"""
