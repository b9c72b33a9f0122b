"""`forge data prompt`: what a model is sent about a problem.

`view` is called by the command line; `problem` finds the problem and judges the attempts at it.
"""
