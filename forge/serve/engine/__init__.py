"""The part of an engine child that all engines share. Never imported by the host."""
