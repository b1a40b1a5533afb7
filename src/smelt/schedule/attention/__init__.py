"""Attention and its gradients as nests."""
