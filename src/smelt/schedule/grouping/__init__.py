"""Items and groups: which computations share a nest."""
