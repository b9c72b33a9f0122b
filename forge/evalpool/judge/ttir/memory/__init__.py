"""Memory accesses of the evaluator: storages, places in them, checked loads, stores, atomics."""
