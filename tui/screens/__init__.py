"""One screen a file. Each shows what a view answers: no SQL here, and none of the figures is made
here.
"""
