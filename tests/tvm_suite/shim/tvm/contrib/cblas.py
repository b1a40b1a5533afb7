"""``tvm.contrib.cblas``: a product is smelt's own."""

from smelt import topi


def matmul(lhs, rhs, transa=False, transb=False):
    """The product of two matrices."""
    return topi.nn.matmul(lhs, rhs, None, None, transa, transb)
