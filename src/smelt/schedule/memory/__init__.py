"""Storage of buffers, and the plan."""
