"""The store port and what every store gets: retries, limits, counters, chaos."""
