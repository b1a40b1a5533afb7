"""Reductions, scans, sorting and operators based on them."""
