"""Object stores: file, S3, and read-only fsspec."""
