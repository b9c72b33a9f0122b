"""SQL on one run or several: `forge sql`, named queries, exports.

Used by the command line, the other views and notebooks. Reads through `store`, never writes a run.
"""
