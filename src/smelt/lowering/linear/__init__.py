"""Fourier transforms and linear algebra in kernels of our own, for programs that do without ATen."""
