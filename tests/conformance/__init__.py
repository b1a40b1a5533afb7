"""Yardsticks: PyTorch's operator database (`opinfo`), random graphs (`fuzz`), random te programs under random
schedules (`te_fuzz`), each against eager.
"""
