"""The plan of a run, made before anything starts. Imports no other room of the supervisor."""
