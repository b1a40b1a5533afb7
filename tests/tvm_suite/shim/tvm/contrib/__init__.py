"""``tvm.contrib``: what TVM gives to libraries, smelt computes itself."""
