"""Widgets that display data, one per file: they show what they are given and post messages."""
