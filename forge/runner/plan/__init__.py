"""The plan of a run, made before anything starts: processes, devices, memory, time.

Called by `forge plan`, `forge run` and commands that open engines alone. Reads the machine and
starts nothing; imports no other room of the supervisor.
"""
