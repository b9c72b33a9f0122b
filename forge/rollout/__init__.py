"""The loop that plays problems. It sees only the ports Generate, Judge and Sink (`ports.py`)."""
