"""Where buffers live, and the plan."""
