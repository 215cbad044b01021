"""Its kernels that are compiled at their first call."""
