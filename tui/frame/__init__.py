"""The parts that every screen has: the watched run, queries in a thread, the top two lines.

Imported by `tui.app` and the screens. Imports the store, views and the control client.
"""
