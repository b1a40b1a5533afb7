"""Packages: a compiled model on disk that runs without torch, without Python and without a compiler."""
