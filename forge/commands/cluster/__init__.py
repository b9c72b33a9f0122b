"""`forge cluster check`: the nodes of a Ray cluster, and the room that they have for a run.

Called by the command line.
"""
