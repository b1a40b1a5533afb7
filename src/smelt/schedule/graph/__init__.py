"""Rewrites of the loop graph before grouping."""
