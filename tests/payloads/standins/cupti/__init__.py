"""Stands in for cupti-python."""
