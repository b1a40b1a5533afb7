"""The closed, verified form of a program: what it is made of, how it is got, what its key is."""

from smelt.contract.clusters import Clustered, clustered
from smelt.contract.decompositions import decompositions, export_decompositions, portable_decompositions
from smelt.contract.denied import Denied
from smelt.contract.dropout import whole_attention
from smelt.contract.flex import has_kernel
from smelt.contract.graph import contract, contracted
from smelt.contract.key import graph_key
from smelt.contract.siblings import join_siblings
from smelt.contract.verify import unsupported, verify

__all__ = [
    "Clustered",
    "Denied",
    "clustered",
    "contract",
    "contracted",
    "decompositions",
    "export_decompositions",
    "graph_key",
    "has_kernel",
    "join_siblings",
    "portable_decompositions",
    "unsupported",
    "verify",
    "whole_attention",
]
