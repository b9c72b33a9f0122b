"""Progress of a running stage: counters, console lines, requests to stop, and living children.

The ground that every other room of the supervisor stands on; imports none of them.
"""
