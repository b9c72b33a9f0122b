"""The frame of every screen: the watched run, queries in a worker thread, the top two lines.

Imported by `forge.tui.app` and the screens. Imports the store, views and the control client.
"""
