"""The loop: plays problems with the policy and makes training batches of the results. It sees
engine, judges and store only through the ports of ports.py."""
