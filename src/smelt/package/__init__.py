"""Packages: a compiled model without torch, without Python, without a compiler."""
