"""Readers and writers of file formats.

Where things are: the contract in ``port``; formats by name in ``registry``; one module per format (``jsonl``, ``parquet``, ``csv``,
``arrow``, ``files``, ``runs``), its writer in ``<format>_write``. Bytes: ``ranged`` (an object as chunks or as a file), ``lines``,
``compress``, ``sink``. Schemas: ``schema`` (encode, infer, unify), ``widen`` (the lattice), ``conform`` (rows and tables to exactly one
schema) with ``columns``, ``cast``, ``findings``; ``align`` does the same for what a columnar reader hands out.
"""
