"""cloudshard: batch processing of machine-learning data on cloud object storage."""
__version__ = "0.1.0"
