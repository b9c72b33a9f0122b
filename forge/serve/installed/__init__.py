"""Which engines this machine has, and in which versions. Imports no engine."""
