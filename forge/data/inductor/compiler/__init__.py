"""Runs Inductor on a problem without a card, in a child process with torch.

`card.py` answers Inductor's questions about a GPU, `graph.py` traces a problem with symbolic sizes,
`templates.py` chooses Inductor's Triton templates for products and convolutions.
"""
