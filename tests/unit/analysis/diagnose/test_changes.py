"""One change of an operation, or of what stands in its place, puts a text right; the operation is named with it."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm

MESH = jm.make_mesh((2, 4), ("y", "x"))


def texts_of(f: Any, *args: Any) -> dict[str, str]:
    """Returns the texts of a program without shardings."""
    return sharded_texts(f, *args, mesh=jm.make_mesh((1, 1)))


def sharded_texts(f: Any, *args: Any, mesh: Any, **options: Any) -> dict[str, str]:
    """Returns the texts of a program with shardings."""
    traced = jm.jit(f, mesh=mesh, **options).trace(*args)
    program = jax.jit(f).lower(*args).as_text("stablehlo", debug_info=True)
    texts = {"ttir": traced.as_text(debug_info=True), "ttnn": traced.lower().as_text(debug_info=True)}
    return {"shlo_frontend": program, **texts}


def named(texts: dict[str, str], stage: str, old: str, new: str) -> tuple[str, str]:
    """Returns what is named of a text whose one match of a pattern is changed, after its line."""
    other, count = re.subn(old, new, texts[stage])
    assert count == 1
    at = next(i for i, (a, b) in enumerate(zip(other.split("\n"), texts[stage].split("\n"), strict=False)) if a != b)
    stages = ("shlo_frontend", "ttir") if stage == "ttir" else ("shlo_frontend", "ttnn")
    found = jm.diagnose({name: other if name == stage else texts[name] for name in stages})
    assert (found.verdict, found.line) == ("wrong", at + 1), found
    return found.op, found.cause


def test_a_scatter_by_another_reduction() -> None:
    texts = texts_of(lambda x, i: jax.ops.segment_max(x, i, 4) * 2, jnp.ones((8, 8)), jnp.arange(8) % 4)
    cause = "with scatter_reduce_type = max it is right"
    assert named(texts, "ttir", "reduce_type<max>", "reduce_type<min>") == ("ttir.scatter", cause)


def test_a_movement_that_does_nothing_in_the_place_of_the_second_reduction() -> None:
    texts = sharded_texts(lambda x: jnp.tanh(x.sum()) * x, jnp.ones((8, 8)), mesh=MESH, in_shardings=P("y", "x"))
    old = r'"ttir.all_reduce"\((%\d+)\) <{cluster_axis = 1 .*}>'
    assert named(texts, "ttir", old, r'"ttir.reshape"(\1) <{shape = []}>')[0] == "ttir.reshape"


def test_a_movement_that_does_nothing_in_the_place_of_the_first_reduction() -> None:
    texts = sharded_texts(lambda x: jnp.tanh(x.sum()) * x, jnp.ones((8, 8)), mesh=MESH, in_shardings=P("y", "x"))
    old = r'"ttir.all_reduce"\((%\d+)\) <{cluster_axis = 0 .*}>'
    assert named(texts, "ttir", old, r'"ttir.reshape"(\1) <{shape = []}>')[0] == "ttir.reshape"


def test_a_reduction_along_an_axis_of_one_device() -> None:
    mesh, args = jm.make_mesh((1, 8), ("y", "x")), (jnp.ones((64, 16)), jnp.ones((4, 6), jnp.int32))
    texts = sharded_texts(lambda t, i: jnp.sqrt(2.0) * t[i], *args, mesh=mesh, in_shardings=(P("x"), P()))
    old = r'("ttir.all_reduce"\(%\d+\) <{cluster_axis = )1'
    assert named(texts, "ttir", old, r"\g<1>0")[0] == "ttir.all_reduce"


@pytest.mark.slow
def test_a_value_that_nothing_reads() -> None:
    def exchanged(x: Any) -> Any:
        return jnp.tanh(jax.lax.all_to_all(jnp.tanh(x), "x", 1, 0, tiled=True))

    f = jax.shard_map(exchanged, mesh=MESH, in_specs=P("x"), out_specs=P(None, "x"))
    texts = sharded_texts(f, jnp.ones((8, 8)), mesh=MESH)
    found = named(texts, "ttnn", r'("ttnn.concat"\((%\d+)), %\d+', r"\1, \2")
    assert found == ("ttnn.concat", "it reads another value than it should, which nothing reads")


def test_joined_weights_in_another_order() -> None:
    def apart(x: Any, v: Any, w: Any) -> Any:
        return jnp.sin(x @ v), jnp.cos(x @ w)

    def joined(x: Any, v: Any, w: Any) -> Any:
        both = x @ jnp.concatenate([v, w], 1)
        return jnp.sin(both[:, :8]), jnp.cos(both[:, 8:])

    args = (jnp.ones((8, 8)),) * 3
    texts = {**texts_of(apart, *args), "ttir": jm.jit(joined).trace(*args).as_text()}
    found = named(texts, "ttir", r'("ttir.concat")\((%\w+), (%\w+)\)', r"\1(\3, \2)")
    assert found == ("ttir.concat", "with its operands in another order it is right")


def test_a_reshape_in_the_place_of_a_permutation() -> None:
    texts = texts_of(lambda x: jnp.tanh(jnp.sin(x).T) * 2, jnp.ones((4, 8)))
    old = r'"ttir.permute"\((%\d+)\) <{permutation = array<i64: 1, 0>}>'
    found = named(texts, "ttir", old, r'"ttir.reshape"(\1) <{shape = [8 : i32, 4 : i32]}>')
    assert found == ("ttir.reshape", "with ttir.permute over [1, 0] in its place it is right")


def test_a_permutation_that_is_one_too_many_before_a_reshape() -> None:
    texts = texts_of(lambda x: jnp.tanh(jnp.sin(x).reshape(2, 2, 8)), jnp.ones((4, 8)))
    old = r'(%\d+) = "ttir.reshape"\((%\d+)\) (<{shape = .*\(tensor<)4x8'
    moved = r'%9 = "ttir.permute"(\2) <{permutation = array<i64: 1, 0>}> : (tensor<4x8xf32>) -> tensor<8x4xf32>'
    found = named(texts, "ttir", old, rf'{moved}\n    \1 = "ttir.reshape"(%9) \g<3>8x4')
    assert found == ("ttir.permute", "with ttir.reshape in its place it is right")


def test_a_permutation_of_five_dims() -> None:
    texts = texts_of(lambda x: jnp.sin(x).transpose(2, 0, 1, 3, 4) * 2, jnp.ones((2, 4, 3, 2, 5)))
    found = named(texts, "ttir", "permutation = array<i64: 2, 0, 1, 3, 4>", "permutation = array<i64: 2, 3, 1, 0, 4>")
    assert found == ("ttir.permute", "with permutation = [2, 0, 1, 3, 4] it is right")


def test_the_first_of_two_errors_in_two_results() -> None:
    texts = texts_of(lambda x, y: (jnp.sin(x) * 2, jnp.cos(y) * 3), jnp.ones((4, 8)), jnp.ones((4, 8)))
    swapped = texts["ttir"].replace('"ttir.cos"(%arg1)', '"ttir.cos"(%arg0)')
    assert swapped != texts["ttir"]
    found = named({**texts, "ttir": swapped}, "ttir", r'"ttir.sin"\(%arg0\)', '"ttir.sin"(%arg1)')
    assert found[0] == "ttir.sin"


def test_the_smaller_part_of_a_sum_decides_signs() -> None:
    texts = texts_of(lambda m, g: jnp.sign(0.9 * m + 1e-2 * jnp.tanh(g)), *(jnp.ones((8, 8)),) * 2)
    assert named(texts, "ttir", "ttir.tanh", "ttir.cos")[0] == "ttir.cos"


def test_the_first_number_of_a_list() -> None:
    texts = texts_of(lambda x: x * np.array([0, 1, 2, 5, 3, 7]) + 1, jnp.ones((8, 6), jnp.int32))
    found = named(texts, "ttir", r"dense<\[\[0, 1, 2, 5, 3, 7", "dense<[[1, 1, 2, 5, 3, 7")
    assert found == ("ttir.constant", "with 0 at [0] it is right")


def test_a_value_that_is_deallocated_in_a_loop() -> None:
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, y: jnp.tanh(jnp.sin(y) + y), x)

    texts = texts_of(loop, x := jnp.ones((32, 32)))
    texts["ttnn"] = jm.jit(loop, mesh=jm.make_mesh((1, 1))).lower(x).as_text(debug_info=True, unroll_limit=1)
    lines = texts["ttnn"].split("\n")
    at = next(i for i, r in enumerate(lines) if '"ttnn.tanh"' in r)
    tanh, freed = lines[at : at + 2]
    assert "ttnn.deallocate" in freed
    lines[at : at + 2] = freed, tanh
    found = jm.diagnose({"shlo_frontend": texts["shlo_frontend"], "ttnn": "\n".join(lines)})
    assert (found.verdict, found.op, found.line) == ("wrong", "ttnn.tanh", at + 2)
    assert found.cause == f"it reads a value that line {at + 1} deallocates"


def test_a_number_that_stands_for_true() -> None:
    texts = texts_of(lambda x, i: x * (i == 3), jnp.ones((4, 8)), jnp.ones((4, 8), jnp.int32))
    full = r'    %NAME = "ttir.full"() <{fill_value = VALUE : f32, shape = array<i32>}> : () -> tensor<f32> \2\n'
    fulls = full.replace("NAME", "yes").replace("VALUE", "8.0e-01") + full.replace("NAME", "no").replace("VALUE", "0.0")
    chosen = r'    %2 = "ttir.where"(%1, %yes, %no) : (tensor<4x8xi1>, tensor<f32>, tensor<f32>) -> \1 \2'
    old = r'    %2 = "ttir.typecast".* (tensor<4x8xf32>) (loc.*)'
    assert named(texts, "ttir", old, fulls + chosen) == ("ttir.full", "with 1 in its place it is right")


def test_a_remainder_with_the_sign_of_the_divisor() -> None:
    """Few elements are above the divisor: the others are right without the operation, and as a minimum."""
    program, text = (texts_of(f, jnp.ones((8, 8))) for f in (lambda x: jax.lax.rem(x, 3.0), lambda x: x + 3.0))
    wrong = text["ttnn"].replace('"ttnn.add"', '"ttnn.remainder"')
    found = jm.diagnose({"shlo_frontend": program["shlo_frontend"], "ttnn": wrong})
    assert (found.op, found.cause) == ("ttnn.remainder", "with the sign of the dividend it is right")


def test_a_cast_there_and_back() -> None:
    """It is named at the cast to integers."""
    texts = texts_of(lambda x: jnp.exp(jnp.cos(x)) @ x, jnp.ones((8, 8)))
    old = r'(%\d+) = "ttir.exp"\((%\d+)\)(.*) -> (tensor<.*?)f32> (loc.*)'
    casts = r'\n    %b = "ttir.typecast"(%a) : (\4f32>) -> \4i32>\n    \1 = "ttir.typecast"(%b) : (\4i32>) -> \4f32>'
    text = re.sub(old, rf'%a = "ttir.exp"(\2)\3 -> \4f32> \5{casts}', texts["ttir"])
    found = jm.diagnose({"shlo_frontend": texts["shlo_frontend"], "ttir": text})
    at = next(i for i, row in enumerate(text.split("\n"), 1) if "%b = " in row)
    assert (found.op, found.line) == ("ttir.typecast", at)
    assert found.cause == "one too many: without it the results are right"


def test_a_kind_of_which_the_program_has_as_many() -> None:
    """Nothing is clipped, so another minimum makes up for the sum."""
    texts = texts_of(lambda x: jnp.minimum(jnp.maximum(jnp.tanh(x), -3.0), 3.0) * 2, jnp.ones((8, 8)))
    assert named(texts, "ttir", "ttir.maximum", "ttir.add")[0] == "ttir.add"


def test_an_argument_in_another_placement() -> None:
    options = {"mesh": jm.make_mesh((2, 2), ("y", "x")), "in_shardings": (P("y"), P(None, "x"))}
    texts = sharded_texts(lambda x, w: jnp.tanh(x @ w), jnp.ones((8, 4)), jnp.ones((4, 8)), **options)
    found = named(texts, "ttir", r"(%0 = .*shard_dims = array<i64: )0, -1>", r"\g<1>-1, 0>")
    assert found == ("ttir.mesh_shard", "with dim 0 split over _0 it is right")


def test_what_the_right_text_before_it_has_otherwise() -> None:
    """A sum in the place of the product by a number would make up for a mean, and for another value."""
    texts = texts_of(lambda x, y: jnp.sum(jnp.tanh(x / y), 1) * jnp.cos(y.T), *(jnp.ones((8, 8)),) * 2)
    for old, new in ((r'"ttnn.sum"', '"ttnn.mean"'), (r'"ttnn.divide"\((%\d+), %\d+\)', r'"ttnn.divide"(\1, \1)')):
        text, count = re.subn(old, new, texts["ttnn"])
        assert count == 1
        found = jm.diagnose({**texts, "ttnn": text})
        assert (found.stage, found.op) == ("ttnn", re.findall(r'"(.*?)"', new)[0]), found


def test_a_choice_that_passes_its_operand_on() -> None:
    """The program has the operand elsewhere, and the right value in the other operand."""
    texts = texts_of(lambda x: jax.nn.softplus(x) * 0.5, jnp.ones((8, 8)))
    found = named(texts, "ttir", r'"ttir.where"\((%\d+), (%\d+), (%\d+)\)', r'"ttir.where"(\1, \3, \2)')
    assert found[0] == "ttir.where"


def test_an_argument_that_is_split_in_another_order_of_axes() -> None:
    sharding = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
    frontend = f"""module {{
  sdy.mesh @mesh = <["y"=2, "x"=4]>
  func.func public @main(%arg0: tensor<8x16xf32> {sharding}) -> (tensor<8x16xf32> {sharding}) {{
    %0 = stablehlo.sine %arg0 : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }}
}}"""
    whole, part = (f"#ttcore.shard_status<{status}>" for status in ("unsharded", "presharded"))
    ttir = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}} {{
  func.func @main(%arg0: tensor<8x16xf32> {{ttcore.shard_status = {whole}}}) -> (tensor<1x16xf32> {{ttcore.shard_status = {part}}}) {{
    %0 = "ttir.mesh_shard"(%arg0) <{{shard_dims = array<i64: 0, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, shard_shape = array<i64: 8, 1>, shard_type = #ttcore.shard_type<devices>}}> : (tensor<8x16xf32>) -> tensor<1x16xf32>
    %1 = "ttir.sin"(%0) : (tensor<1x16xf32>) -> tensor<1x16xf32>
    return %1 : tensor<1x16xf32>
  }}
}}"""  # noqa: E501
    found = jm.diagnose({"shlo_frontend": frontend, "ttir": ttir})
    assert (found.op, found.line) == ("ttir.mesh_shard", 3)
    assert found.cause == "with dim 0 split over x, y it is right"
