"""What a run will need, decided before anything starts: roles, devices, memory, time.

Called by `forge plan`, `forge run` and whatever opens engines alone. Reads the machine and starts
nothing; imports no other room of the supervisor.
"""
