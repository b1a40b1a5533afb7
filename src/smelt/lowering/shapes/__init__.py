"""Views, and tensors put together anew."""
