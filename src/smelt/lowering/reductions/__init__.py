"""Reductions, scans, orders and what is made of them."""
