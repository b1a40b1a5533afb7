"""The methods of `smelt.tir.Schedule` on stages and data: each resolves its arguments, calls one primitive of
`smelt.nest.primitives`, and records the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Symbol

from smelt.nest.ir import Kernel
from smelt.nest.primitives import blocks, caches, epilogues, inline, layouts, places, reindexed
from smelt.nest.primitives.common import refusal, stage_place
from smelt.nest.primitives.prefetching import prefetch_during
from smelt.nest.primitives.together import blockize_together
from smelt.nest.scopes import reads, writes
from smelt.tir.intrinsics import TensorIntrin
from smelt.tir.maps import IndexMap

Block = Any
Loop = Any


class PlaceMoves:
    """Changes of the places of stages, and of the memory and layout of data. A part of `smelt.tir.Schedule`,
    which has

    - ``_kernel``: the kernel of the current function;
    - ``_stage_name(block)`` and ``_loop_var(loop)``: what a reference or a name means;
    - ``_step(kernel, method, arguments, made)``: the kernel takes the place of the old one, the call is
      recorded, and references to the stages of the names ``made`` come back, in order.
    """

    _kernel: Kernel
    _stage_name: Callable[[Block], str]
    _loop_var: Callable[[Loop], Symbol]
    _step: Callable[..., list[Block]]

    # -- where stages are computed -----------------------------------------------------------------------

    def compute_at(
        self, block: Block, loop: Loop, preserve_unit_loops: bool = False, index: int = -1
    ) -> None:
        """Computes a producer in each iteration of a loop (`smelt.nest.primitives.places.compute_at`)."""
        name, var = self._stage_name(block), self._loop_var(loop)
        changed = places.compute_at(self._kernel, name, var, preserve_unit_loops, index)
        options = {"preserve_unit_loops": preserve_unit_loops, "index": index}
        self._step(changed, "compute_at", {"block": block, "loop": loop, **options}, [])

    def reverse_compute_at(
        self, block: Block, loop: Loop, preserve_unit_loops: bool = False, index: int = -1
    ) -> None:
        """Computes a consumer in every iteration (`smelt.nest.primitives.places.reverse_compute_at`)."""
        name, var = self._stage_name(block), self._loop_var(loop)
        changed = places.reverse_compute_at(self._kernel, name, var, preserve_unit_loops, index)
        options = {"preserve_unit_loops": preserve_unit_loops, "index": index}
        self._step(changed, "reverse_compute_at", {"block": block, "loop": loop, **options}, [])

    def compute_inline(self, block: Block) -> None:
        """Computes a producer in its consumers (`smelt.nest.primitives.inline.compute_inline`)."""
        changed = inline.compute_inline(self._kernel, self._stage_name(block))
        self._step(changed, "compute_inline", {"block": block}, [])

    def reverse_compute_inline(self, block: Block) -> None:
        """Computes a consumer in its producer (`smelt.nest.primitives.inline.reverse_compute_inline`)."""
        changed = inline.reverse_compute_inline(self._kernel, self._stage_name(block))
        self._step(changed, "reverse_compute_inline", {"block": block}, [])

    def fuse_reduction_epilogue(self, reduction_block: Block, epilogue_block: Block) -> None:
        """Initializes a reduction with the term that is added to it afterwards
        (`smelt.nest.primitives.epilogues.fuse_reduction_epilogue`).
        """
        names = self._stage_name(reduction_block), self._stage_name(epilogue_block)
        changed = epilogues.fuse_reduction_epilogue(self._kernel, *names)
        given = {"reduction_block": reduction_block, "epilogue_block": epilogue_block}
        self._step(changed, "fuse_reduction_epilogue", given, [])

    # -- where data is kept ------------------------------------------------------------------------------

    def cache_read(
        self,
        block: Block,
        read_buffer_index: int | str,
        storage_scope: str,
        consumer_blocks: Sequence[Block] | None = None,
    ) -> Block:
        """Reads a copy of a buffer (`smelt.nest.primitives.caches.cache_read`)."""
        users = [self._stage_name(each) for each in consumer_blocks or ()]
        name = self._stage_name(block)
        changed, made = caches.cache_read(
            self._kernel, name, _buffer_name(read_buffer_index), storage_scope, users
        )
        given = {"block": block, "read_buffer_index": read_buffer_index, "storage_scope": storage_scope}
        given |= {"consumer_blocks": list(consumer_blocks)} if consumer_blocks else {}
        return self._step(changed, "cache_read", given, [made])[0]

    def cache_write(
        self,
        block: Block,
        write_buffer_index: int | str,
        storage_scope: str,
        consumer_blocks: Sequence[Block] | None = None,
    ) -> Block:
        """Writes to a new buffer that is copied afterwards (`smelt.nest.primitives.caches.cache_write`)."""
        users = [self._stage_name(each) for each in consumer_blocks or ()]
        name = self._stage_name(block)
        changed, made = caches.cache_write(
            self._kernel, name, _buffer_name(write_buffer_index), storage_scope, users
        )
        given = {"block": block, "write_buffer_index": write_buffer_index, "storage_scope": storage_scope}
        given |= {"consumer_blocks": list(consumer_blocks)} if consumer_blocks else {}
        return self._step(changed, "cache_write", given, [made])[0]

    def cache_inplace(self, block: Block, read_buffer_index: int | str, storage_scope: str) -> list[Block]:
        """Reads and writes a buffer of the block's own (`smelt.nest.primitives.caches.cache_inplace`)."""
        name, number = self._stage_name(block), _buffer_name(read_buffer_index)
        changed, *made = caches.cache_inplace(self._kernel, name, number, storage_scope)
        given = {"block": block, "read_buffer_index": read_buffer_index, "storage_scope": storage_scope}
        return self._step(changed, "cache_inplace", given, made)

    def reindex(self, block: Block, buffer: Any) -> Block:
        """Uses a buffer in the order of the block's axes (`smelt.nest.primitives.layouts.reindex`)."""
        name = self._stage_name(block)
        changed, made = layouts.reindex(self._kernel, name, self._buffer(name, buffer, "reindex"))
        return self._step(changed, "reindex", {"block": block, "buffer": buffer}, [made])[0]

    def reindex_cache_read(
        self, block: Block, read_buffer_index: int | str, storage_scope: str, index_map: Callable[..., Any]
    ) -> Block:
        """Reads a copy whose layout is a map of the block's axes
        (`smelt.nest.primitives.reindexed.reindex_cache_read`).
        """
        name = self._stage_name(block)
        number = _buffer_name(read_buffer_index)
        changed, made = reindexed.reindex_cache_read(self._kernel, name, number, storage_scope, index_map)
        given = {"block": block, "read_buffer_index": read_buffer_index, "storage_scope": storage_scope}
        given["index_map"] = IndexMap.of(index_map, self._axes(name))
        return self._step(changed, "reindex_cache_read", given, [made])[0]

    def reindex_cache_write(
        self, block: Block, write_buffer_index: int | str, storage_scope: str, index_map: Callable[..., Any]
    ) -> Block:
        """Writes a buffer whose layout is a map of the block's axes
        (`smelt.nest.primitives.reindexed.reindex_cache_write`).
        """
        name = self._stage_name(block)
        number = _buffer_name(write_buffer_index)
        changed, made = reindexed.reindex_cache_write(self._kernel, name, number, storage_scope, index_map)
        given = {"block": block, "write_buffer_index": write_buffer_index, "storage_scope": storage_scope}
        given["index_map"] = IndexMap.of(index_map, self._axes(name))
        return self._step(changed, "reindex_cache_write", given, [made])[0]

    def set_scope(self, block: Block, buffer_index: int | str, storage_scope: str) -> None:
        """Moves a buffer that a block writes to another memory (`smelt.nest.primitives.caches.set_scope`)."""
        name = self._stage_name(block)
        changed = caches.set_scope(self._kernel, name, _buffer_name(buffer_index), storage_scope)
        given = {"block": block, "buffer_index": buffer_index, "storage_scope": storage_scope}
        self._step(changed, "set_scope", given, [])

    def storage_align(
        self, block: Block, buffer_index: int | str, axis: int, factor: int, offset: int
    ) -> None:
        """Pads the rows of a buffer that a block writes (`smelt.nest.primitives.caches.storage_align`)."""
        name = self._stage_name(block)
        buffer = _buffer_name(buffer_index)
        changed = caches.storage_align(self._kernel, name, buffer, axis, factor, offset)
        given = {"block": block, "buffer_index": buffer_index}
        self._step(changed, "storage_align", {**given, "axis": axis, "factor": factor, "offset": offset}, [])

    # -- layouts of data -------------------------------------------------------------------------------------

    def transform_layout(
        self,
        block: Block,
        buffer: Any,
        index_map: Callable[..., Any],
        pad_value: Any = None,
        *,
        assume_injective_transform: bool = False,
    ) -> None:
        """Changes the layout of a buffer (`smelt.nest.primitives.layouts.transform_layout`)."""
        stage = self._stage_name(block)
        name = self._buffer(stage, buffer, "transform_layout")
        what = f"transform_layout({name}) of {stage}"
        changed = layouts.transform_layout(
            self._kernel, name, index_map, pad_value, assume_injective_transform, what
        )
        shape = places.shapes_of(self._kernel)[name]
        given = {"block": block, "buffer": buffer, "index_map": IndexMap.of(index_map, len(shape))}
        options = {"pad_value": pad_value, "assume_injective_transform": assume_injective_transform}
        self._step(changed, "transform_layout", {**given, **options}, [])

    def transform_block_layout(self, block: Block, index_map: Callable[..., Any]) -> None:
        """Iterates over the axes in another way (`smelt.nest.primitives.layouts.transform_block_layout`)."""
        name = self._stage_name(block)
        axes = self._axes(name)
        changed = layouts.transform_block_layout(self._kernel, name, index_map)
        given = {"block": block, "index_map": IndexMap.of(index_map, axes)}
        self._step(changed, "transform_block_layout", given, [])

    def reorder_block_iter_var(self, block: Block, new_order: Sequence[int]) -> None:
        """Reorders a block's axes (`smelt.nest.primitives.layouts.reorder_block_iter_var`)."""
        changed = layouts.reorder_block_iter_var(self._kernel, self._stage_name(block), new_order)
        given = {"block": block, "new_order": list(new_order)}
        self._step(changed, "reorder_block_iter_var", given, [])

    def pad_einsum(self, block: Block, padding: Sequence[int]) -> None:
        """Rounds the extents of a sum of products up (`smelt.nest.primitives.epilogues.pad_einsum`)."""
        changed = epilogues.pad_einsum(self._kernel, self._stage_name(block), padding)
        self._step(changed, "pad_einsum", {"block": block, "padding": list(padding)}, [])

    # -- other ways of computing -------------------------------------------------------------------------

    def blockize(self, target: Any, preserve_unit_iters: bool = True) -> Block:
        """Makes one block of a loop (`smelt.nest.primitives.blocks.blockize`), or of several blocks."""
        if isinstance(target, (list, tuple)):
            names = [self._stage_name(each) for each in target]
            changed, made = blockize_together(self._kernel, names, preserve_unit_iters)
        else:
            changed, made = blocks.blockize(self._kernel, self._loop_var(target), preserve_unit_iters)
        given = {"target": target, "preserve_unit_iters": preserve_unit_iters}
        return self._step(changed, "blockize", given, [made])[0]

    def tensorize(self, block_or_loop: Any, tensor_intrin: str, preserve_unit_iters: bool = True) -> None:
        """Computes a block or a loop by an intrinsic (`smelt.nest.primitives.blocks.tensorize`)."""
        target: str | Symbol
        if isinstance(block_or_loop, str) or hasattr(block_or_loop, "name_hint"):
            target = self._stage_name(block_or_loop)
        else:
            target = self._block_or_loop(block_or_loop)
        found = TensorIntrin.get(tensor_intrin)
        assert found is not None
        changed = blocks.tensorize(self._kernel, target, found.intrinsic, preserve_unit_iters)
        given = {"block_or_loop": block_or_loop, "tensor_intrin": tensor_intrin}
        self._step(changed, "tensorize", {**given, "preserve_unit_iters": preserve_unit_iters}, [])

    def prefetch(self, block: Block, buffer: Any, index_map: Callable[..., Any], step: int) -> None:
        """Prefetches memory while a register tile is summed
        (`smelt.nest.primitives.prefetching.prefetch_during`).
        """
        name = self._stage_name(block)
        made = IndexMap.of(index_map, self._axes(name))
        changed = prefetch_during(self._kernel, name, _buffer_name(buffer), index_map, step)
        self._step(changed, "prefetch", {"block": block, "buffer": buffer, "index_map": made, "step": step})

    def _axes(self, name: str) -> int:
        return len(stage_place(self._kernel, name, name)[0].axes)

    def _block_or_loop(self, given: Any) -> str | Symbol:
        """The stage name or loop variable of a reference."""
        if type(given).__name__.startswith("Block"):
            return self._stage_name(given)
        return self._loop_var(given)

    def _buffer(self, stage: str, buffer: Any, method: str) -> str:
        """The name of a buffer, given by name or as a buffer that a block reads or writes."""
        if isinstance(buffer, (list, tuple)) and len(buffer) == 2 and isinstance(buffer[1], int):
            kind, number = buffer
            target = stage_place(self._kernel, stage, method)[0]
            names = reads(target) if kind == "read" else writes(target)
            if kind not in ("read", "write") or not 0 <= number < len(names):
                listed = ", ".join(names) or "nothing"
                raise refusal("SM1031", f"{method} of {stage}", f"there is no ({kind!r}, {number}): {listed}")
            return names[number]
        return str(_buffer_name(buffer))


def _buffer_name(buffer: Any) -> Any:
    """The name of a buffer; a number is unchanged."""
    if not isinstance(buffer, (int, str)) and not hasattr(buffer, "name"):
        raise refusal("SM1011", f"{buffer!r}", "a buffer is wanted: its name or its number")
    return buffer if isinstance(buffer, (int, str)) else buffer.name
