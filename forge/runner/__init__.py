"""The supervisor: owns every process of a run. Read `run.py` first."""
