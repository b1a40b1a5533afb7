"""A stand-in for TVM: its names, bound to smelt. For TVM's own tests only."""
