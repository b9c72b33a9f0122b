"""The loop: plays problems with the policy and makes training batches of the results.

Called by the supervisor's stages. It sees engine, judges and store only through
the ports of ports.py, and never imports serve, evalpool or store.
"""
