"""One step for each operation without control flow: arithmetic, addresses, memory, descriptors.

Called by `plan`, through `dispatch.py`. A step is a function of an environment and a group.
"""
