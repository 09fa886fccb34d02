"""Logical to physical: splitting, schema, fusion, boundaries, fingerprint, explain."""
