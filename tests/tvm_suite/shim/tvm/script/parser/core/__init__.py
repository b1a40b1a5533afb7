"""``tvm.script.parser.core``."""
