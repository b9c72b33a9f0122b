"""Nodes of `[cluster]` in a plan: which roles and cards each of them gets, and what stays idle.

Called by `plan` for the machines of `--assume 4x8xH100-80GB`; pure, without Ray. Imports the other
files of a plan, and no other room of the supervisor.
"""
