"""`forge kernels export`: the best kernels of a run as files, or as a project for the kernel hub.

Called by the command line. Reads a run, writes a directory; starts nothing.
"""
