"""What a person asks of a run: plain functions that return data, and for each a render function
for the terminal.
"""
