"""Traces: a compiled program from the model's lines to its kernels' lines, with times, as plain data.

`record.record` runs a program with clocks, schedules its graphs once more, and joins the two by the origins
that every node and instruction carries. ``docs/trace.md`` has the schema.
"""
