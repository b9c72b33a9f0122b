"""Both ends of what a judge and its children exchange: frames, shared memory, texts.

Imports nothing of the other rooms, since children see none of them.
"""
