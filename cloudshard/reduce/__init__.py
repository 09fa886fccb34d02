"""Boundaries, the library: hashing, sorted runs, the choice of partitions, and the operators over one partition.

Self-contained and tested; no pipeline reaches it yet. What planner, ledger and engine need from it is in each module's docstring.
"""
