"""Views, and tensors assembled from others."""
