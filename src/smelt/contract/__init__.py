"""The closed, verified form of a program: its definition, its construction and its key."""

from smelt.contract.clusters import Clustered, clustered
from smelt.contract.decompositions import decompositions, export_decompositions, portable_decompositions
from smelt.contract.denied import Denied
from smelt.contract.devices import device_of, devices_of
from smelt.contract.dropout import whole_attention
from smelt.contract.flex import has_kernel
from smelt.contract.graph import contract, contracted
from smelt.contract.horizontal_fusion import fuse_horizontally
from smelt.contract.key import graph_key
from smelt.contract.verify import unsupported, verify

__all__ = [
    "Clustered",
    "Denied",
    "clustered",
    "contract",
    "contracted",
    "decompositions",
    "device_of",
    "devices_of",
    "export_decompositions",
    "fuse_horizontally",
    "graph_key",
    "has_kernel",
    "portable_decompositions",
    "unsupported",
    "verify",
    "whole_attention",
]
