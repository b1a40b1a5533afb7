"""Rewrites of the loop graph before anything is grouped."""
