"""Positions that tensors hold, and sizes that depend on data."""
