"""Stands in for sglang 0.5.10 to 0.5.15."""
