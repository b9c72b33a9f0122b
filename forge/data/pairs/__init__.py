"""SFT rows: made from generated problems and their answers, or read from files.

Called while a run is prepared. The judge is a port; nothing here imports evalpool.
"""
