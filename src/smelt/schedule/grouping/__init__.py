"""Items and groups: computations that share a nest."""
