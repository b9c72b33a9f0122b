"""Isolation of children: namespaces, a root of their own, system calls, limits; and its proof."""
