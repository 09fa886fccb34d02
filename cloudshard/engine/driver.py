"""The driver: one stage compiled for one process (see :mod:`cloudshard.fused.driver`)."""

from cloudshard.engine.attempt import AttemptContext, AttemptFailure, AttemptResult
from cloudshard.fused.driver import Driver
from cloudshard.fused.output import MemoryOutput, StoreOutput

__all__ = ["AttemptContext", "AttemptFailure", "AttemptResult", "Driver", "MemoryOutput", "StoreOutput"]
