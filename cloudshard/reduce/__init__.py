"""Boundaries: partition, spill and reduce. Hashing, sorted runs, the choice of partitions, and the operators over one partition."""
