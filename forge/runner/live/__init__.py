"""Progress of a running stage: counters, console lines, and requests to stop.

The ground that every other room of the supervisor stands on; imports none of them.
"""
