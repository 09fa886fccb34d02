"""The fused engine (interim package)."""
