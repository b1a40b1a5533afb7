"""Pieces of nests become blocks, and blocks become what computes the same."""

from __future__ import annotations

from smelt.nest.ir import Block, For, Kernel
from smelt.nest.primitives.blocks import Intrinsic, blockize, tensorize
from smelt.nest.primitives.caches import cache_read, cache_write
from smelt.nest.primitives.places import compute_at, reverse_compute_at
from smelt.nest.primitives.together import blockize_together
from smelt.nest.scopes import place_of_stage
from smelt.nest.tree import replace_loop, rewritten, stages, with_body
from smelt.ops import ops
from smelt.records import replace
from tests.nest.staging import Program, extents_of, loops_of, same, stage
from tests.nest.test_places import chain, load, product, refused, split


def tiled(kernel: Kernel, name: str, *factors: int) -> Kernel:
    """The loops of a stage split, those inside of the tiles last."""

    for depth, factor in enumerate(factors):
        kernel = split(kernel, name, 2 * depth, factor)
    place = place_of_stage(kernel, name)
    assert place is not None
    loops, count = place.loops, 2 * len(factors)
    ordered = [*loops[0:count:2], *loops[1:count:2], *loops[count:]]
    nest = place.stmt
    for each in reversed(ordered):
        nest = replace(each, body=Block((nest,)))
    top = loops[0]
    return with_body(
        kernel, rewritten(kernel.body, lambda s: (nest,) if isinstance(s, For) and s is top else None)
    )


def test_loops_inside_become_a_block() -> None:
    kernel = tiled(chain(), "C", 4, 4)
    same(chain(), kernel)
    loops = loops_of(kernel, "C")
    for number in range(4):
        blocked, name = blockize(kernel, loops[number])
        assert name == "C_o" and [each.name for each in stages(blocked.body)] == ["B", "C_o", "C", "D"]
        same(chain(), blocked)
    blocked, _ = blockize(kernel, loops[2])
    assert [axis.extent for axis in stage(blocked, "C_o").axes] == [3, 2]
    assert [axis.extent for axis in stage(blocked, "C").axes] == [4, 4]


def test_several_blocks_become_one() -> None:
    kernel = chain(3, 1)
    made, name = blockize_together(kernel, ["B", "C"], preserve_unit_iters=False)
    assert name == "outer_B_C" and [each.name for each in stages(made.body)] == ["outer_B_C", "B", "C", "D"]
    assert [len(stage(made, each).axes) for each in "BCD"] == [1, 1, 2]
    same(kernel, made)
    refused("SM1037", lambda: blockize_together(kernel, ["B", "D"]), "not consecutive")
    refused("SM1002", lambda: blockize_together(kernel, ["B", "E"]), "no block 'E'")
    at = compute_at(chain(), "B", loops_of(chain(), "C")[0])
    refused("SM1037", lambda: blockize_together(at, ["B", "C"]), "around all of them")
    refused("SM1037", lambda: blockize_together(at, ["C", "D"]), "another block")


def test_units_of_blocks() -> None:
    kernel = split(chain(4, 8), "C", 0, 4)
    loops = loops_of(kernel, "C")
    kept, _ = blockize(kernel, loops[1])
    gone, _ = blockize(kernel, loops[1], preserve_unit_iters=False)
    assert stage(kept, "C_o").axes[0].value == loops[0] and stage(gone, "C_o").axes[0].value == 0
    same(kernel, kept)
    same(kernel, gone)


def test_a_reductions_init_goes_out_of_the_block() -> None:
    kernel = tiled(product(8, 6, 4), "C", 4, 3)
    i, j, ii, jj, k = loops_of(kernel, "C")
    for loop in (i, j, ii, jj, k):
        blocked, name = blockize(kernel, loop)
        assert stage(blocked, name).init is not None and stage(blocked, "C").init is None
        same(product(8, 6, 4), blocked, exactly=False)
    whole, _ = blockize(
        split(product(8, 6, 4), "C", 2, 2), loops_of(split(product(8, 6, 4), "C", 2, 2), "C")[3]
    )
    same(product(8, 6, 4), whole, exactly=False)


def test_blocks_of_blocks_move_as_blocks_do() -> None:
    kernel, name = blockize(tiled(chain(), "C", 4, 4), loops_of(tiled(chain(), "C", 4, 4), "C")[2])
    at = compute_at(kernel, "B", loops_of(kernel, name)[1])
    assert extents_of(at, "B") == [3, 2, 4, 4]
    same(chain(), at)
    whole, _ = blockize(tiled(chain(), "B", 2, 4), loops_of(tiled(chain(), "B", 2, 4), "B")[2])
    at = compute_at(whole, "B_o", loops_of(whole, "C")[0])
    assert extents_of(at, "B_o") == [12, 2]
    same(chain(), at)
    after = reverse_compute_at(whole, "C", loops_of(whole, "B_o")[1])
    assert extents_of(after, "C") == [6, 2, 2, 4]
    same(chain(), after)
    inside, copy = cache_write(whole, "B", 0, "local")
    same(chain(), inside)
    inside, copy = cache_read(whole, "B_o", 0, "local")
    same(chain(), compute_at(inside, copy, loops_of(inside, "B_o")[1]))
    loop = loops_of(whole, "B")[2]
    refused("SM1021", lambda: reverse_compute_at(whole, "C", loop), "same block scope")


def test_blockize_refuses() -> None:
    kernel = chain()
    at = compute_at(kernel, "C", loops_of(kernel, "D")[0])
    refused("SM1037", lambda: blockize(at, loops_of(at, "D")[0]), "more than one block")
    uneven = split(kernel, "C", 0, 5)
    assert extents_of(uneven, "C")[:2] == [3, 5]
    blocked, _ = blockize(uneven, loops_of(uneven, "C")[1])
    assert stage(blocked, "C").where
    same(kernel, blocked)
    p = Program(A=(12,))
    p.compute("B", (12,), lambda i: load("A", i))
    strided = split(p.kernel("B"), "B", 0, 4)

    out = loops_of(strided, "B")[0]
    swapped = with_body(
        strided,
        replace_loop(
            strided.body,
            out,
            lambda loop: (
                replace(
                    loop.body.stmts[0], body=type(loop.body)((replace(loop, body=loop.body.stmts[0].body),))
                ),
            ),
        ),
    )
    same(strided, swapped)
    refused("SM1037", lambda: blockize(swapped, out), "steps of 4")


def dot(n: int) -> Kernel:
    p = Program(X=(n,), Y=(n,))
    p.reduce("Z", (), (n,), lambda k: ops.mul(load("X", k), load("Y", k)))
    kernel = p.kernel("Z")
    (update,) = stages(kernel.body)

    return with_body(
        kernel, rewritten(kernel.body, lambda s: (replace(s, init=None),) if s is update else None)
    )


def twice(n: int) -> Kernel:
    """The dot product in two halves, in memory of its own."""
    p = Program(X=(n,), Y=(n,))
    p.reduce(
        "H", (2,), (n // 2,), lambda h, k: ops.mul(load("X", h * (n // 2) + k), load("Y", h * (n // 2) + k))
    )
    p.reduce("Z", (), (2,), lambda h: load("H", h))
    kernel = p.kernel("Z")
    update = next(each for each in stages(kernel.body) if each.name == "Z")

    return with_body(
        kernel, rewritten(kernel.body, lambda s: (replace(s, init=None),) if s is update else None)
    )


def test_a_loop_becomes_an_intrinsic() -> None:
    kernel = split(product(8, 6, 8), "C", 2, 4)
    k = loops_of(kernel, "C")[3]
    p = Program(A=(8, 8), B=(6, 8))
    p.reduce("C", (8, 6), (8,), lambda i, j, r: ops.mul(load("A", i, r), load("B", j, r)))
    kernel = split(p.kernel("C"), "C", 2, 4)
    k = loops_of(kernel, "C")[3]
    changed = tensorize(kernel, k, Intrinsic("dot4", dot(4), twice(4)))
    assert {"C_o", "C_o_H", "C_o_Z"} <= {each.name for each in stages(changed.body)}
    same(kernel, changed, exactly=False)
    blocked, name = blockize(kernel, k)
    same(kernel, tensorize(blocked, name, Intrinsic("dot4", dot(4), twice(4))), exactly=False)


def test_what_is_something_else_is_not_tensorized() -> None:
    kernel = split(product(8, 6, 8), "C", 2, 4)
    k = loops_of(kernel, "C")[3]
    eight = Intrinsic("dot8", dot(8), twice(8))
    refused("SM1038", lambda: tensorize(kernel, k, eight), "4 iterations, not 8")
    strided = split(chain(), "C", 1, 4)
    inner = loops_of(strided, "C")[2]
    refused("SM1038", lambda: tensorize(strided, inner, Intrinsic("dot4", dot(4), twice(4))))
    p = Program(A=(8, 8), B=(8, 6))
    p.reduce("C", (8, 6), (8,), lambda i, j, r: ops.add(load("A", i, r), load("B", r, j)))
    other = split(p.kernel("C"), "C", 2, 4)
    refused("SM1038", lambda: tensorize(other, loops_of(other, "C")[3], Intrinsic("dot4", dot(4), twice(4))))
