"""Runs Inductor on a problem without a card, in a child process with torch.

`graph.py` traces a problem with symbolic sizes and answers it; `sizes.py` has and names the sizes;
`templates.py` has templates for products and convolutions, and answers Inductor's questions about a
GPU.
"""
