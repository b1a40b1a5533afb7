"""Complex numbers as two real values."""
