"""Splittings of ops: what a sharding rule lets be computed on shards."""

from __future__ import annotations

from jaxmesh.frontends.stablehlo.rules import Rule, split

SIZES = {"y": 2, "x": 4}
MATMUL = Rule((8, 16, 32), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), frozenset({2}), frozenset())
"""`ik, kj -> ij` with the factors i=8, j=16, k=32."""
SHAPES = [(8, 32), (32, 16)], [(8, 16)]


def test_a_contracted_dim_gives_partial_results() -> None:
    made = split(MATMUL, SHAPES, [(("y",), ("x",)), (("x",), ())], [(("y",), ())], SIZES, reduces=True)
    assert made.operands == ((("y",), ("x",)), (("x",), ()))
    assert made.partial == ("x",)


def test_what_cannot_be_reduced_is_gathered() -> None:
    made = split(MATMUL, SHAPES, [(("y",), ("x",)), (("x",), ())], [(("y",), ())], SIZES, reduces=False)
    assert made.operands == ((("y",), ()), ((), ()))
    assert made.partial == ()


def test_an_axis_of_the_result_is_not_reduced_over() -> None:
    made = split(MATMUL, SHAPES, [((), ("x",)), (("x",), ())], [((), ("x",))], SIZES, reduces=True)
    assert made.operands == (((), ()), ((), ("x",)))
    assert made.partial == ()


def test_a_minor_factor_is_split_only_beside_a_whole_major_one() -> None:
    """`(2, 4) -> (8)`: split over the minor factor alone, the merged dim would be strided."""
    reshape = Rule((2, 4), (((0,), (1,)),), (((0, 1),),), frozenset(), frozenset())
    shapes = [(2, 4)], [(8,)]
    both = split(reshape, shapes, [(("y",), ("x",))], [(("y", "x"),)], SIZES, reduces=False)
    assert both.operands == ((("y",), ("x",)),)
    assert both.results == ((("y", "x"),),)
    minor = split(reshape, shapes, [((), ("x",))], [((),)], SIZES, reduces=False)
    assert minor.operands == (((), ()),)


def test_permuted_dims_are_not_split() -> None:
    roll = Rule((8,), (((0,),),), (((0,),),), frozenset(), frozenset({0}))
    made = split(roll, ([(8,)], [(8,)]), [(("y",),)], [(("y",),)], SIZES, reduces=False)
    assert made.operands == (((),),)
    assert made.results == (((),),)


def test_a_factor_beside_one_without_elements_is_not_split() -> None:
    """`(4), (0) -> (0)`: the merged dim has no elements, and its major factor could not be split there."""
    merge = Rule((4, 0), (((0,),), ((1,),)), (((0, 1),),), frozenset(), frozenset())
    made = split(merge, ([(4,), (0,)], [(0,)]), [(("x",),), ((),)], [(("x",),)], SIZES, reduces=False)
    assert made.operands == (((),), ((),))
    assert made.results == (((),),)


def test_a_dim_of_one_window_is_split_as_a_whole() -> None:
    windows = Rule((1, 8), (((0,), (1,)),), (((0, 1),),), frozenset(), frozenset())
    made = split(windows, ([(1, 8)], [(8,)]), [((), ("x",))], [(("x",),)], SIZES, reduces=False)
    assert made.operands == (((), ("x",)),)
    assert made.results == ((("x",),),)
