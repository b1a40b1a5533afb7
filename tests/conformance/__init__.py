"""Yardsticks: PyTorch's operator database (`opinfo`) and random graphs (`fuzz`), each against eager."""
