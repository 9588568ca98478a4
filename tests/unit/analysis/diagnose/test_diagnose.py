"""Programs that are right are never flagged; errors in texts are named at their operation, with the cause."""

from __future__ import annotations

import functools
import html
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.diagnose.reference import run_draws
from jaxmesh.analysis.diagnose.source_lines import SourceLines
from jaxmesh.analysis.upstream import UpstreamProgram, UpstreamRefusal
from tests.generators.diagnosed import exported, outcomes, write_folder
from tests.generators.issue_patterns import PATTERNS
from tests.generators.plain_programs import BATCH, CASES, FOUR, HEADS, SQUARE, Case, V, W, X, llama_block, mlp

# jaxmesh drops shardings that do not divide, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::jaxmesh.errors.ShardingWarning")
QUICK = ("tensor and data parallel mlp", "a slice that crosses shards", "pad", "reduce_scatter", "remat", "bfloat16")
TEXTS = {c.name: c for c in CASES if c.text}
# The unsharded program has a loop or a branch as one operation, and its decompositions nothing to compare with.
OPAQUE = {"scan", "fori_loop", "cond", "custom_vjp", "random"}


@pytest.mark.parametrize("name", QUICK)
def test_right_programs(name: str) -> None:
    found = jm.diagnose(exported(TEXTS[name]))
    assert found.verdict == "right", found
    assert set(found.stages) == {"ttir", "ttnn"}


@pytest.mark.slow(but_one_in=12)
@pytest.mark.parametrize("name", [n for n in TEXTS if n not in QUICK])
def test_more_right_programs(name: str) -> None:
    assert jm.diagnose(exported(TEXTS[name])).verdict in ("right", "less precise")


def check_planted(names: list[str], stage: str, most: int, share: float) -> None:
    named, honest, errors, wrong = 0, 0, 0, list[str]()
    for name in names:
        for outcome in outcomes(exported(TEXTS[name]), stage, most):
            if outcome.planted.rounding:
                assert outcome.is_named, f"{name}: {outcome.text}"
            elif outcome.changes:
                errors, named, honest = errors + 1, named + outcome.is_named, honest + outcome.is_honest
                wrong += [] if outcome.is_named else [f"{name}: {outcome.text}"]
    assert errors >= len(names)
    listing = f"{named} named, {honest} named or between two lines, of {errors}\n" + "\n".join(wrong)
    assert named >= share * errors, listing
    assert honest >= 0.98 * errors, listing


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
def test_planted_errors_are_named(stage: str) -> None:
    check_planted(["tensor and data parallel mlp", "a slice that crosses shards", "pad"], stage, 1, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
def test_each_of_many_alike_slices_is_named(stage: str) -> None:
    """A shifted slice takes what another slice takes: its elements are explained, by another value."""
    case = Case("sequence", lambda x: jax.lax.associative_scan(jnp.add, x), (np.arange(64.0).reshape(8, 8) ** 2,))
    found = [o for o in outcomes(exported(case), stage) if o.planted.kind == "shifted slice" and o.changes]
    # A slice that ends the padding between elements belongs to the pad.
    wrong = [o.text for o in found if not (o.is_named or o.diagnosis.op == f"{stage}.pad")]
    assert sum(o.is_named for o in found) >= 3
    assert not wrong, "\n".join(wrong)


def parallel_attention(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
    """Heads over x, as users write them in a `shard_map`, with what no global value has within."""

    def on_each_device(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
        q, k = ((x @ w).reshape(*x.shape[:2], -1, 4) for w in (wq, wk))
        half = jnp.concatenate([k[..., 2:], k[..., :2]], -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, half)
        scores = jnp.exp(scores - jax.lax.pmax(jax.lax.stop_gradient(scores.max()), "x"))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, k).reshape(*x.shape[:2], -1)
        return jax.lax.psum(mixed @ wo, "x")

    specs = (P("y"), P(None, "x"), P(None, "x"), P("x"))
    return x + jax.shard_map(on_each_device, mesh=PARALLEL.mesh, in_specs=specs, out_specs=P("y"))(x, wq, wk, wo)


PARALLEL = Case(
    "parallel attention",
    parallel_attention,
    (BATCH, SQUARE, SQUARE, SQUARE),
    (P("y"), P(None, "x"), P(None, "x"), P("x")),
)
KINDS = {"dropped all_reduce", "wrong cluster_axis", "shifted slice", "no rounding"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
def test_errors_within_a_shard_map_are_named(stage: str) -> None:
    """The unsharded program holds, for each device, the value that it has to have there."""
    texts = exported(PARALLEL)
    right = jm.diagnose({k: t for k, t in texts.items() if k in ("shlo_frontend", stage)})
    assert right.verdict == "right"
    count = re.search(r"(\d+) of (\d+) values", right.stages[stage])
    assert count is not None
    assert int(count[1]) > 0.9 * int(count[2])
    found = [o for o in outcomes(texts, stage, 2) if o.changes]
    assert {"dropped all_reduce", "wrong cluster_axis", "shifted slice", "no rounding"} <= {
        o.planted.kind for o in found
    }
    assert all(o.is_named for o in found), "\n".join(o.text for o in found if not o.is_named)
    shifted = next(o.diagnosis for o in found if o.planted.kind == "shifted slice")
    assert shifted.elements
    assert "wrong" in shifted.to_html()
    assert "sdy.manual_computation" in jm.minimize(shifted).stablehlo


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ttir", "ttnn"])
def test_more_planted_errors_are_named(stage: str) -> None:
    # A third of the texts in each stage.
    check_planted([n for n in TEXTS if n not in OPAQUE][stage == "ttnn" :: 3], stage, 1, 0.95)


@pytest.mark.slow(but_one_in=6)
@pytest.mark.parametrize("case", PATTERNS, ids=lambda c: c.name)
def test_patterns_of_issues(case: Case) -> None:
    assert jm.diagnose(exported(case)).verdict == "right"


def test_arguments_of_numpy_have_the_types_that_jax_gives_them() -> None:
    """The texts have 64 bits, and the program was traced without."""
    x, n = np.arange(8), 3.0
    f = lambda x, n: x * n  # noqa: E731
    text = jax.jit(f).lower(x, n).as_text("stablehlo")
    wide = text.replace("return", "%wide = stablehlo.constant dense<0> : tensor<i64>\n    return")
    texts = {"shlo_frontend": wide, "ttir": jm.jit(f).trace(x, n).as_text()}
    assert jm.diagnose(texts, x, n).verdict == "right"
    with pytest.raises(jm.errors.ArgumentTypeError, match="argument 0 is float32"):
        jm.diagnose(texts, x.astype(np.float32), n)


# --- hand-written texts, as upstream prints them ---------------------------------------------------------------------

HEAD = "module @jit_f attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {\n"
MESH = '  sdy.mesh @mesh = <["y"=2, "x"=4]>\n'


def frontend(arguments: str, body: str, result: str) -> str:
    return f"{HEAD}{MESH}  func.func public @main({arguments}) -> {result} {{\n{body}\n  }}\n}}"


def sharded(number: int, kind: str, *dims: str) -> str:
    written = ", ".join("{" + (f'"{d}"' if d else "") + "}" for d in dims)
    return f"%arg{number}: tensor<{kind}> {{sdy.sharding = #sdy.sharding<@mesh, [{written}]>}}"


def local(arguments: dict[str, str], body: str, result: str) -> str:
    there = "ttcore.shard_status = #ttcore.shard_status<presharded>"
    listed = ", ".join(f"%{name}: tensor<{kind}> {{{there}}}" for name, kind in arguments.items())
    return (
        'module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>} {\n'
        f"  func.func public @main({listed}) -> (tensor<{result}> {{{there}}}) {{\n{body}\n  }}\n}}"
    )


def line(result: int, name: str, operands: str, attributes: str, types: str) -> str:
    return f'    %{result} = "ttir.{name}"({operands}) <{{{attributes}}}> : {types}\n'


JOINED = (
    "tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>",
    "(tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>",
    "(tensor<4x8xf32>) -> tensor<4x4xf32>",
)
PRODUCT = (
    "batch_dims_lhs = array<i64>, batch_dims_rhs = array<i64>, contract_dims_lhs = array<i64: 1>, "
    "contract_dims_rhs = array<i64: 0>"
)


def joined(first: int, scale: str = "multiply") -> dict[str, str]:
    """Returns the texts of two products; the devices join their parts of the weights, and cut the product."""
    kind = "tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>"
    body = f"""    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : ({kind}
    %1 = stablehlo.tanh %0 : tensor<8x16xf32>
    %2 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0] : ({kind}
    %3 = stablehlo.multiply %1, %2 : tensor<8x16xf32>
    return %3 : tensor<8x16xf32>"""
    arguments = (sharded(0, "8x8xf32", "y", ""), sharded(1, "8x16xf32", "", "x"), sharded(2, "8x16xf32", "", "x"))
    placed = 'tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}'

    def cut(at: int) -> str:
        return f"begins = [0 : i32, {at} : i32], ends = [4 : i32, {at + 4} : i32], step = [1 : i32, 1 : i32]"

    ops = (
        line(0, "concat", "%a, %b", "dim = 1 : si32", f"({JOINED[0]}")
        + line(1, "dot_general", "%x, %0", PRODUCT, JOINED[1])
        + line(2, "slice_static", "%1", cut(first), JOINED[2])
        + line(3, "slice_static", "%1", cut(4), JOINED[2])
        + line(4, "tanh", "%2", "", "(tensor<4x4xf32>) -> tensor<4x4xf32>")
        + line(5, scale, "%4, %3", "", "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>")
    )
    text = local({"x": "4x8xf32", "a": "8x4xf32", "b": "8x4xf32"}, ops + "    return %5 : tensor<4x4xf32>", "4x4xf32")
    return {"shlo_frontend": frontend(", ".join(arguments), body, f"({placed})"), "ttir": text}


def test_weights_that_the_devices_join_are_no_values_of_the_program() -> None:
    right = jm.diagnose(joined(0))
    assert right.verdict == "right"
    assert right.unexplained["ttir"] == ("ttir.concat (line 3)", "ttir.dot_general (line 4)")
    found = jm.diagnose(joined(1))
    assert (found.op, found.line) == ("ttir.slice_static", 5)
    assert jm.diagnose(joined(0, "add")).op == "ttir.add"


@pytest.mark.parametrize("after", ["", "tanh"])
def test_shards_joined_along_their_split_dim_are_wrong(after: str) -> None:
    """The parts of the result are values of the program, but not in the order of the program."""
    kind, types = "tensor<16x4xf32>", "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>"
    arguments = f"{sharded(0, '8x4xf32', 'y', '')}, {sharded(1, '8x4xf32', 'y', '')}"
    body = f"    %0 = stablehlo.concatenate %arg0, %arg1, dim = 0 : (tensor<8x4xf32>, tensor<8x4xf32>) -> {kind}\n"
    ops = line(0, "concat", "%a, %b", "dim = 0 : si32", types)
    if after:
        body += f"    %1 = stablehlo.{after} %0 : {kind}\n"
        ops += line(1, after, "%0", "", "(tensor<8x4xf32>) -> tensor<8x4xf32>")
    result = int(bool(after))
    body, ops = (text.replace("\n", ' loc("model.py":3:1)\n') for text in (body, ops))
    placed = f'({kind} {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}})'
    program = frontend(arguments, f"{body}    return %{result} : {kind}", placed)
    text = local({"a": "4x4xf32", "b": "4x4xf32"}, f"{ops}    return %{result} : tensor<8x4xf32>", "8x4xf32")
    found = jm.diagnose({"shlo_frontend": program, "ttir": text})
    assert (found.verdict, found.op, found.axes) == ("wrong", "ttir.concat", ("y",))


def pairs(body: str) -> dict[str, str]:
    """Returns the texts of a program of `uint64`, which the compiler passes as pairs of 32 bits."""
    program = frontend(
        sharded(0, "4x2xui64", "y", ""), body, '(tensor<4x2xui64> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})'
    )
    known = "ttcore.local_shape = #ttcore<local_shape local_shape = tensor<2x2xui64>>, "
    text = local({"x": "2x2x2xui32"}, "    return %x : tensor<2x2x2xui32>", "2x2x2xui32")
    return {"shlo_frontend": program, "ttir": text.replace("{ttcore.shard_status", "{" + known + "ttcore.shard_status")}


def test_integers_of_64_bits_are_compared_as_pairs() -> None:
    x = np.arange(8, dtype=np.uint64).reshape(4, 2) * np.uint64(2**33 + 1)
    with jax.enable_x64():
        same = pairs("    return %arg0 : tensor<4x2xui64>")
        assert jm.diagnose(same, x).verdict == "right"
        double = "    %0 = stablehlo.add %arg0, %arg0 : tensor<4x2xui64>\n    return %0 : tensor<4x2xui64>"
        assert jm.diagnose(pairs(double), x).verdict == "wrong"


def test_a_region_takes_arguments_in_any_order() -> None:
    """The partitioned program names its operands by value; their order is not that of the arguments."""
    body = "    %0 = stablehlo.subtract %arg0, %arg1 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    region = """    %0 = sdy.manual_computation(%arg1, %arg0)
        in_shardings=[<@mesh, [{}, {"x"}]>, <@mesh, [{"y"}, {"x"}]>]
        out_shardings=[<@mesh, [{"y"}, {"x"}]>] manual_axes={"y", "x"} (%b: tensor<8x2xf32>, %a: tensor<4x2xf32>) {
      %1 = stablehlo.slice %b [0:4, 0:2] : (tensor<8x2xf32>) -> tensor<4x2xf32>
      %2 = stablehlo.subtract %a, %1 : tensor<4x2xf32>
      sdy.return %2 : tensor<4x2xf32>
    } : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>"""
    plain = "%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>"
    cut = "begins = [0 : i32, 0 : i32], ends = [4 : i32, 2 : i32], step = [1 : i32, 1 : i32]"
    ttir = (
        line(0, "slice_static", "%b", cut, "(tensor<8x2xf32>) -> tensor<4x2xf32>")
        + line(1, "subtract", "%a, %0", "", "(tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>")
        + "    return %1 : tensor<4x2xf32>"
    )
    # Both halves of the second argument are equal, so that each device is right with the first.
    b = np.tile(np.arange(32, dtype=np.float32).reshape(4, 8), (2, 1))
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(plain, body, "tensor<8x8xf32>"),
            "shlo_compiler": frontend(plain, region, "tensor<8x8xf32>"),
            "ttir": local({"a": "4x2xf32", "b": "8x2xf32"}, ttir, "4x2xf32"),
        },
        np.arange(64, dtype=np.float32).reshape(8, 8) ** 2,
        b,
    )
    assert found.verdict == "right", str(found)


SWAPPED = (
    ("all_gather", "all_gather_dim = 0 : si32, cluster_axis = 0 : ui32", "(tensor<1x4xf32>) -> tensor<2x4xf32>"),
    ("all_gather", "all_gather_dim = 0 : si32, cluster_axis = 1 : ui32", "(tensor<2x4xf32>) -> tensor<8x4xf32>"),
)
"""Two gathers of a dim that is split over y and x, the major axis first: the blocks come back interleaved."""


def swapped(first: int, operand: str) -> str:
    (name, y, to_two), (_, x, to_all) = SWAPPED
    return line(first, name, operand, y, to_two) + line(first + 1, name, f"%{first}", x, to_all)


def test_two_gathers_in_the_wrong_order_have_their_cause() -> None:
    kind, whole = "tensor<8x4xf32>", "tensor<16x4xf32>"
    body = f"    %0 = stablehlo.negate %arg0 : {kind}\n"
    body += f"    %1 = stablehlo.concatenate %arg0, %0, dim = 0 : ({kind}, {kind}) -> {whole}\n    return %1 : {whole}"
    argument = '%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}'
    types = "(tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>"
    ops = line(0, "neg", "%x", "", "(tensor<1x4xf32>) -> tensor<1x4xf32>") + swapped(1, "%x") + swapped(3, "%0")
    ops += line(5, "concat", "%2, %4", "dim = 0 : si32", types)
    text = local({"x": "1x4xf32"}, f"{ops}    return %5 : {whole}", "16x4xf32")
    found = jm.diagnose({"shlo_frontend": frontend(argument, body, whole), "ttir": text})
    assert (found.verdict, found.op, found.axes) == ("wrong", "ttir.all_gather", ("y", "x"))
    assert found.cause.startswith("gather order")
    assert found.proof is not None
    assert found.proof.holds


def test_windows_of_shards_whose_parts_are_summed() -> None:
    """The channels are split, too: each device has its part of the sum, of its own rows alone."""
    kind, types = "tensor<2x4x6x4xf32>", "(tensor<2x4x6x2xf32>, tensor<4x2x3x3xf32>) -> tensor<2x4x6x4xf32>"
    arguments = f"{sharded(0, '2x16x6x4xf32', '', 'x', '', 'y')}, {sharded(1, '4x4x3x3xf32', '', 'y', '', '')}"
    whole = "tensor<2x16x6x4xf32>"
    body = f"""    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f],
        window = {{stride = [1, 1], pad = [[1, 1], [1, 1]]}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({whole}, tensor<4x4x3x3xf32>) -> {whole}
    return %0 : {whole}"""
    placed = f'({whole} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}, {{}}, {{}}]>}})'
    window = (
        "dilation = array<i32: 1, 1>, groups = 1 : i32, padding = array<i32: 1, 1, 1, 1>, stride = array<i32: 1, 1>"
    )
    reduced = "cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<sum>"
    ops = line(0, "conv2d", "%x, %k", window, types) + line(1, "all_reduce", "%0", reduced, f"({kind}) -> {kind}")
    text = local({"x": "2x4x6x2xf32", "k": "4x2x3x3xf32"}, f"{ops}    return %1 : {kind}", "2x4x6x4xf32")
    found = jm.diagnose({"shlo_frontend": frontend(arguments, body, placed), "ttir": text})
    assert (found.verdict, found.op, found.axes) == ("wrong", "ttir.conv2d", ("x",))
    assert found.cause.startswith("window without its neighbours: dim 1")


def test_a_reversal_of_each_shard() -> None:
    body = "    %0 = stablehlo.reverse %arg0, dims = [0] : tensor<16x8xf32>\n    return %0 : tensor<16x8xf32>"
    result = '(tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})'
    types = "(tensor<8x8xf32>) -> tensor<8x8xf32>"
    ttir = line(0, "reverse", "%a", "dimensions = array<i64: 0>", types) + "    return %0 : tensor<8x8xf32>"
    texts = {
        "shlo_frontend": frontend(sharded(0, "16x8xf32", "y", ""), body, result),
        "ttir": local({"a": "8x8xf32"}, ttir, "8x8xf32"),
    }
    found = jm.diagnose(texts)
    assert (found.verdict, found.op, found.axes, found.dims) == ("wrong", "ttir.reverse", ("y",), (0,))
    assert found.cause.startswith("reversal of each shard alone")
    assert len(found.devices) == 8
    assert "64 of 64 wrong" in str(found._repr_html_())
    assert html.unescape(found.to_html()).startswith(f"<pre>{found}</pre>")


def test_gathers_in_the_wrong_order() -> None:
    body = "    %0 = stablehlo.tanh %arg0 : tensor<16x4xf32>\n    return %0 : tensor<16x4xf32>"
    shard = '%arg0: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>}'
    result = "(tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})"

    def gathered(axes: tuple[int, int], middle: int) -> str:
        wide = f"tensor<{middle}x4xf32>"
        one, two = (f"all_gather_dim = 0 : si32, cluster_axis = {axis} : ui32" for axis in axes)
        ops = line(0, "all_gather", "%a", one, f"(tensor<2x4xf32>) -> {wide}")
        ops += line(1, "all_gather", "%0", two, f"({wide}) -> tensor<16x4xf32>")
        ops += line(2, "tanh", "%1", "", "(tensor<16x4xf32>) -> tensor<16x4xf32>")
        return local({"a": "2x4xf32"}, f"{ops}    return %2 : tensor<16x4xf32>", "16x4xf32")

    texts = {"shlo_frontend": frontend(shard, body, result)}
    assert jm.diagnose({**texts, "ttir": gathered((1, 0), 8)}).verdict == "right"
    found = jm.diagnose({**texts, "ttir": gathered((0, 1), 4)})
    assert (found.verdict, found.op, found.axes) == ("wrong", "ttir.all_gather", ("y", "x"))
    assert found.cause.startswith("gather order")


def test_a_chunk_across_shards() -> None:
    """As in tt-xla's issues 5862 and 5351: every device but the first reads wrong elements."""
    body = (
        "    %0 = stablehlo.slice %arg0 [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>\n"
        "    %1 = stablehlo.slice %arg0 [0:8, 8:16] : (tensor<8x16xf32>) -> tensor<8x8xf32>\n"
        "    %2 = stablehlo.multiply %0, %1 : tensor<8x8xf32>\n    return %2 : tensor<8x8xf32>"
    )
    result = '(tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})'
    cuts = (f"begins = [0 : i32, {b} : i32], ends = [8 : i32, {b + 2} : i32]" for b in (0, 2))
    types = "(tensor<8x4xf32>) -> tensor<8x2xf32>"
    ops = [line(i, "slice_static", "%a", f"{c}, step = [1 : i32, 1 : i32]", types) for i, c in enumerate(cuts)]
    ops.append(line(2, "multiply", "%0, %1", "", "(tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xf32>"))
    ttir = "".join(ops) + "    return %2 : tensor<8x2xf32>"
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(sharded(0, "8x16xf32", "", "x"), body, result),
            "ttir": local({"a": "8x4xf32"}, ttir, "8x2xf32"),
        }
    )
    assert (found.verdict, found.op, found.axes, found.dims) == ("wrong", "ttir.slice_static", ("x",), (1,))
    assert found.cause.startswith("slice across shards")
    assert (0, 0) not in found.devices


def test_an_argument_that_nothing_reads_is_split_as_the_program_says() -> None:
    """The partitioned program has no operand for it."""
    body = "    %0 = stablehlo.tanh %arg1 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    region = """    %0 = sdy.manual_computation(%arg1) in_shardings=[<@mesh, [{"y"}, {}]>]
        out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"y", "x"} (%a: tensor<4x8xf32>) {
      %1 = stablehlo.tanh %a : tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>"""
    ttir = line(0, "sin", "%b", "", "(tensor<4x8xf32>) -> tensor<4x8xf32>") + "    return %0 : tensor<4x8xf32>"
    texts = {
        "shlo_frontend": frontend(
            f"{sharded(0, '4x8xf32', '', 'x')}, {sharded(1, '8x8xf32', 'y', '')}", body, "tensor<8x8xf32>"
        ),
        "shlo_compiler": frontend("%arg0: tensor<4x8xf32>, %arg1: tensor<8x8xf32>", region, "tensor<8x8xf32>"),
        "ttir": local({"a": "4x2xf32", "b": "4x8xf32"}, ttir, "4x8xf32"),
    }
    assert jm.diagnose(texts).op == "ttir.sin"
    assert jm.diagnose({**texts, "ttir": texts["ttir"].replace("ttir.sin", "ttir.tanh")}).verdict == "right"


BYTES = np.arange(128, dtype=np.int8).reshape(8, 16)


@pytest.mark.parametrize(
    ("program", "printed", "args", "cause"),
    [
        (lambda x: x.sum(0), lambda x: x.prod(0), (X, X), "another reduction: the program's is by add"),
        (
            lambda x: jax.lax.pad(x, 0.0, ((-2, 2, 0), (0, 0, 0))),
            lambda x: x,
            (X, X),
            "left out: the result is argument 0",
        ),
        (
            lambda x: jax.lax.pad(jnp.sin(x), 0.0, ((-2, 2, 0), (0, 0, 0))),
            jnp.sin,
            (X, X),
            "left out: the result is the operand itself, without stablehlo.pad",
        ),
        (lambda x: x + x, lambda x: x + x, (BYTES, np.int32(BYTES)), "integers of another width: int8"),
    ],
    ids=["reduction", "pad", "pad of a result", "int8"],
)
def test_causes_without_shards(program: Any, printed: Any, args: tuple[Any, Any], cause: str) -> None:
    ttir = jm.jit(printed).trace(args[1]).as_text()
    found = jm.diagnose({"shlo_frontend": jax.jit(program).lower(args[0]).as_text("stablehlo"), "ttir": ttir}, args[0])
    assert found.verdict == "wrong"
    assert found.cause.startswith(cause)


def test_the_function_of_another_form_is_less_precise() -> None:
    """Not the product that reads it, whose value is the first that the devices hold."""
    draw = np.random.default_rng(0)
    args = [draw.standard_normal(shape, np.float32) for shape in ((2, 4, 16), (16, 32), (32, 16))]

    def printed(x: Any, w: Any, v: Any) -> Any:
        return (jax.nn.gelu(x.reshape(8, 16) @ w, approximate=False) @ v).reshape(2, 4, 16) * 2

    program = jax.jit(lambda x, w, v: jax.nn.gelu(x @ w) @ v * 2).lower(*args).as_text("stablehlo")
    found = jm.diagnose({"shlo_frontend": program, "ttir": jm.jit(printed).trace(*args).as_text()}, *args)
    assert (found.verdict, found.op) == ("less precise", "ttir.gelu")
    assert found.cause.startswith("ttir.gelu has another form of the function than the program")


def test_another_form_of_a_function_with_small_results_is_not_wrong() -> None:
    """The forms differ by 4.7e-4 of one, which is 3e-3 of results that are at most 0.17."""

    def below(x: Any, most: Any, approximate: bool) -> Any:
        return jax.nn.gelu(x - most(x, 0), approximate=approximate)

    x = jnp.ones((64, 16))
    program = jax.jit(lambda x: below(x, jnp.max, True)).lower(x).as_text("stablehlo")

    def compiled(most: Any) -> str:
        return jm.jit(lambda x: below(x, most, False)).trace(x).as_text()

    for seed in range(3):
        found = jm.diagnose({"shlo_frontend": program, "ttir": compiled(jnp.max)}, seed=seed)
        assert (found.verdict, found.op) == ("less precise", "ttir.gelu")
        found = jm.diagnose({"shlo_frontend": program, "ttir": compiled(jnp.min)}, seed=seed)
        assert (found.verdict, found.op) == ("wrong", "ttir.min")


def test_an_error_is_larger_than_what_another_form_of_a_function_changes() -> None:
    def fun(x: Any, u: Any, m: Any, *, approximate: bool) -> Any:
        return m + 0.1 * jax.nn.gelu(x, approximate=approximate) + 1e-4 * u.T

    args = [jnp.ones((8, 8))] * 3
    program = jax.jit(functools.partial(fun, approximate=True)).lower(*args).as_text("stablehlo")
    text = jm.jit(functools.partial(fun, approximate=False)).trace(*args).as_text()
    other = text.replace("permutation = array<i64: 1, 0>", "permutation = array<i64: 0, 1>")
    found = [jm.diagnose({"shlo_frontend": program, "ttir": x}) for x in (text, other)]
    assert other != text
    assert [x.verdict for x in found] == ["less precise", "wrong"]
    assert found[1].op == "ttir.permute"


def test_parts_of_a_maximum_that_equal_another_value() -> None:
    """Of one column on each device the maximum is the column itself; the parts are not reduced."""
    body = (
        "    %c = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
        "    %0 = stablehlo.reduce(%arg0 init: %c) applies stablehlo.maximum across dimensions = [1] : "
        "(tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>\n"
        "    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x4xf32>\n"
        "    %2 = stablehlo.subtract %arg0, %1 : tensor<8x4xf32>\n    return %2 : tensor<8x4xf32>"
    )
    ttir = (
        line(0, "max", "%a", "dim_arg = [1 : i32], keep_dim = false", "(tensor<8x1xf32>) -> tensor<8xf32>")
        + line(1, "reshape", "%0", "shape = [8 : i32, 1 : i32]", "(tensor<8xf32>) -> tensor<8x1xf32>")
        + line(2, "subtract", "%a, %1", "", "(tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x1xf32>")
    )
    result = '(tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})'
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(sharded(0, "8x4xf32", "", "x"), body, result),
            "ttir": local({"a": "8x1xf32"}, f"{ttir}    return %2 : tensor<8x1xf32>", "8x1xf32"),
        }
    )
    assert (found.op, found.axes) == ("ttir.reshape", ("x",))
    assert found.cause.startswith("dropped reduction: each device holds its part of a max")


def test_parts_that_an_unexplained_product_carries_on() -> None:
    """A product as a multiplication and a sum: between them no device holds a value of the program."""
    product, wide = "stablehlo.dot_general", "tensor<8x16xf32>"
    body = (
        f"    %0 = {product} %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, {wide}) -> {wide}\n"
        f"    %1 = {product} %0, %arg2, batching_dims = [0] x [0], contracting_dims = [1] x [1] : "
        f"({wide}, {wide}) -> tensor<8xf32>\n    return %1 : tensor<8xf32>"
    )
    arguments = sharded(0, "8x8xf32", "", "x"), sharded(1, "8x16xf32", "x", ""), sharded(2, "8x16xf32", "", "")
    ttir = (
        line(0, "dot_general", "%a, %b", PRODUCT, f"(tensor<8x2xf32>, tensor<2x16xf32>) -> {wide}")
        + line(1, "multiply", "%0, %c", "", f"({wide}, {wide}) -> {wide}")
        + line(2, "sum", "%1", "dim_arg = [1 : i32], keep_dim = false", f"({wide}) -> tensor<8xf32>")
    )
    texts = {
        "shlo_frontend": frontend(", ".join(arguments), body, f"({EIGHT})"),
        "ttir": local(
            {"a": "8x2xf32", "b": "2x16xf32", "c": "8x16xf32"}, ttir + "    return %2 : tensor<8xf32>", "8xf32"
        ),
    }
    found = jm.diagnose(texts)
    assert (found.op, found.line, found.axes) == ("ttir.multiply", 4, ("x",))


EIGHT = "tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}"


def test_a_cut_that_the_program_lacks_is_a_step() -> None:
    """The maximum is not reduced; the devices make ones of a cut of numbers, which no global value has."""
    body = (
        "    %c = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
        "    %0 = stablehlo.reduce(%arg0 init: %c) applies stablehlo.maximum across dimensions = [1] : "
        "(tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>\n"
        "    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>\n"
        "    %2 = stablehlo.subtract %arg0, %1 : tensor<8x8xf32>\n"
        "    %3 = stablehlo.iota dim = 1 : tensor<8x8xf32>\n"
        "    %4 = stablehlo.multiply %2, %3 : tensor<8x8xf32>\n    return %4 : tensor<8x8xf32>"
    )
    pair, one = "tensor<8x2xf32>", "tensor<8x1xf32>"
    cut = "begins = [0 : i32, 0 : i32], ends = [8 : i32, 1 : i32], step = [1 : i32, 1 : i32]"
    every = "tensor<8x8xf32>"
    ttir = (
        line(
            0,
            "arange",
            "",
            "arange_dimension = 1 : i64, end = 8 : si64, start = 0 : si64, step = 1 : si64",
            f"() -> {every}",
        )
        + line(1, "mesh_partition", "%0", "cluster_axis = 1 : ui32, dim = 1 : si32", f"({every}) -> {pair}")
        + line(2, "slice_static", "%1", cut, f"({pair}) -> {one}")
        + line(3, "max", "%a", "dim_arg = [1 : i32], keep_dim = true", f"({pair}) -> {one}")
        + line(4, "subtract", "%a, %3", "", f"({pair}, {one}) -> {pair}")
        + line(5, "subtract", "%1, %2", "", f"({pair}, {one}) -> {pair}")
        + line(6, "multiply", "%4, %5", "", f"({pair}, {pair}) -> {pair}")
        + line(7, "multiply", "%4, %2", "", f"({pair}, {one}) -> {pair}")
        + line(8, "add", "%6, %7", "", f"({pair}, {pair}) -> {pair}")
    )
    result = '(tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})'
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(sharded(0, "8x8xf32", "", "x"), body, result),
            "ttir": local({"a": "8x2xf32"}, f"{ttir}    return %8 : {pair}", "8x2xf32"),
        }
    )
    assert (found.op, found.axes) == ("ttir.subtract", ("x",))


def test_a_view_in_the_place_of_an_operation_is_named() -> None:
    """Not the operation that reads the value."""
    program, x = jax.jit(lambda x: jnp.sin(jnp.tanh(x) + 1)).lower(X).as_text("stablehlo"), jnp.ones(X.shape)
    ttir = jm.jit(lambda x: jnp.sin(jnp.tanh(x) + 1)).trace(x).as_text()
    sizes = ", ".join(f"{n} : i32" for n in X.shape)
    (old,) = [row for row in ttir.split("\n") if "ttir.tanh" in row]
    new = re.sub(r'"ttir.tanh"\((%\w+)\)', rf'"ttir.reshape"(\1) <{{shape = [{sizes}]}}>', old)
    found = jm.diagnose({"shlo_frontend": program, "ttir": ttir.replace(old, new)})
    assert (found.op, found.line) == ("ttir.reshape", ttir.split("\n").index(old) + 1)
    assert found.cause == "left out: it does nothing, and the program has stablehlo.tanh in its place"


def test_the_own_part_in_the_place_of_a_gather_is_named() -> None:
    whole, part = "tensor<8x8xf32>", "tensor<8x2xf32>"
    body = f"    %0 = stablehlo.tanh %arg0 : {whole}\n    return %0 : {whole}"
    ttir = line(0, "concat", "%a, %a, %a, %a", "dim = 1 : si32", f"({', '.join([part] * 4)}) -> {whole}") + line(
        1, "tanh", "%0", "", f"({whole}) -> {whole}"
    )
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(sharded(0, "8x8xf32", "", "x"), body, f"({whole})"),
            "ttir": local({"a": "8x2xf32"}, f"{ttir}    return %1 : {whole}", "8x8xf32"),
        }
    )
    assert (found.op, found.axes, found.dims) == ("ttir.concat", ("x",), (1,))
    assert found.cause == "no gather: each device has its part of what is split over x"


# --- the rest --------------------------------------------------------------------------------------------------------


def test_arguments_are_checked() -> None:
    texts = exported(TEXTS["remat"])
    assert jm.diagnose(texts, X, SQUARE).verdict == "right"
    with pytest.raises(jm.ArgumentTypeError, match="argument 1 is float32"):
        jm.diagnose(texts, X, W)
    with pytest.raises(jm.ArgumentTypeError, match="takes 2 arguments, got 1"):
        jm.diagnose(texts, X)
    with pytest.raises(jm.ParseError, match="ttir or ttnn"):
        jm.diagnose({"shlo": texts["shlo_frontend"]})
    with pytest.raises(jm.MissingFileError):
        jm.diagnose("no folder")


def test_a_text_that_is_not_read() -> None:
    texts = exported(TEXTS["remat"])
    found = jm.diagnose({**texts, "ttnn": texts["ttnn"].replace("ttnn.sin", "ttnn.unheard_of")})
    # With the sine of the program in its place the results are right.
    assert (found.verdict, found.exit_code) == ("right", 0)
    assert found.stages["ttnn"].endswith(f"not read: ttnn.unheard_of (line {line_of(texts['ttnn'], 'ttnn.sin')})")
    other = texts["ttnn"].replace("ttnn.sin", "ttnn.unheard_of").replace("ttnn.all_gather", "ttnn.other")
    assert jm.diagnose({**texts, "ttnn": other.replace("ttnn.matmul", "ttnn.more")}).verdict == "not comparable"


def line_of(text: str, name: str) -> int:
    """The line of the first operation of a name."""
    return 1 + next(i for i, row in enumerate(text.split("\n")) if f'"{name}"' in row)


def test_an_operation_that_is_not_read_and_that_nothing_needs_costs_nothing() -> None:
    texts = exported(TEXTS["remat"])
    row = texts["ttir"].split("\n")[line_of(texts["ttir"], "ttir.sin") - 1]
    dead = row.replace("ttir.sin", "ttir.unheard_of").replace(row.split(" = ")[0].strip(), "%dead")
    found = jm.diagnose({**texts, "ttir": texts["ttir"].replace(row, f"{row}\n{dead}")})
    assert (found.verdict, found.stages["ttir"].split(",")[0]) == ("right", "right")
    assert "not read: ttir.unheard_of" in found.stages["ttir"]


def branches(x: Any) -> Any:
    """Two ways from one value to the result."""
    h = jnp.tanh(x)
    return jnp.sin(jnp.exp(h) * 3) - jnp.sqrt(h * h + 1)


UNREAD = {
    "before": ("ttir.sin", "ttir.tanh", "ttir.sigmoid"),
    "beside": ("ttir.sin", "ttir.sqrt", "ttir.rsqrt"),
    "after": ("ttir.tanh", "ttir.subtract", "ttir.maximum"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_an_error_is_named_beside_an_operation_that_is_not_read(case: str) -> None:
    unread, old, new = UNREAD[case]
    texts = texts_of(branches, X)
    text = texts["ttir"].replace(f'"{unread}"', '"ttir.unheard_of"').replace(f'"{old}"', f'"{new}"', 1)
    assert text.count(new) == 1
    found = jm.diagnose({**texts, "ttir": text})
    assert (found.verdict, found.op, found.line) == ("wrong", new, line_of(text, new))
    assert found.proof is not None
    assert found.proof.holds
    assert f"not read: ttir.unheard_of (line {line_of(text, 'ttir.unheard_of')})" in found.stages["ttir"]


def test_each_result_of_an_operation_that_is_not_read_is_taken_as_given() -> None:
    texts = texts_of(lambda x: jnp.sin(x) + jnp.cos(x) * 2, X)
    kind, rows = f"tensor<{'x'.join(map(str, X.shape))}xf32>", texts["ttir"].split("\n")
    sine, cosine = (next(row for row in rows if name in row) for name in ('"ttir.sin"', '"ttir.cos"'))
    names = [row.split(" = ")[0].strip() for row in (sine, cosine)]
    text = texts["ttir"].replace(sine, f'%both:2 = "ttir.unheard_of"(%arg0) : ({kind}) -> ({kind}, {kind})')
    text = text.replace(cosine, "")
    for index, name in enumerate(names):
        text = re.sub(rf"{name}(?![\w#])", f"%both#{index}", text)
    found = jm.diagnose({**texts, "ttir": text})
    assert found.verdict == "right"
    given = sorted(re.findall(r"stablehlo\.\w+", found.stages["ttir"]))
    assert "only if what is not read is" in found.stages["ttir"]
    assert given == ["stablehlo.cosine", "stablehlo.sine"]


def test_an_error_that_only_what_is_not_read_reads_is_not_right() -> None:
    texts = texts_of(lambda x: jnp.sin(jnp.tanh(x)) * x, X)
    text = texts["ttir"].replace("ttir.sin", "ttir.unheard_of").replace("ttir.tanh", "ttir.exp")
    assert jm.diagnose({**texts, "ttir": text}).verdict == "not comparable"


def test_no_operation_is_named_for_what_another_one_may_compute_that_is_not_read() -> None:
    """It may compute the sum that the product reads, or the sine with another sign."""
    texts = texts_of(lambda x: x * jnp.sin(x) + x * jnp.cos(x), X)
    ops = re.findall(r'"ttir.(?!constant)\w+"', texts["ttir"])
    assert ops == ['"ttir.sin"', '"ttir.multiply"', '"ttir.cos"', '"ttir.multiply"', '"ttir.add"']
    other = texts_of(lambda x: x * (jnp.sin(x) + jnp.cos(x)), X)["ttir"]
    assert jm.diagnose({**texts, "ttir": other}).verdict == "right"
    assert jm.diagnose({**texts, "ttir": other.replace("ttir.add", "ttir.unheard_of")}).verdict == "not comparable"
    texts = texts_of(lambda x: jnp.exp(x) - jnp.sin(x), X)
    other = texts["ttir"].replace("ttir.sin", "ttir.unheard_of").replace("ttir.subtract", "ttir.add")
    assert jm.diagnose({**texts, "ttir": other}).verdict == "not comparable"


def test_an_error_is_named_beside_what_is_not_read_and_nothing_needs() -> None:
    texts = texts_of(branches, X)
    row = texts["ttir"].split("\n")[line_of(texts["ttir"], "ttir.sin") - 1]
    dead = row.replace("ttir.sin", "ttir.unheard_of").replace(row.split(" = ")[0].strip(), "%dead")
    text = texts["ttir"].replace(row, f"{row}\n{dead}").replace("ttir.exp", "ttir.cos")
    assert jm.diagnose({**texts, "ttir": text}).op == "ttir.cos"


# --- what only a run can tell ----------------------------------------------------------------------------------------


def texts_of(f: Any, *args: Any) -> dict[str, str]:
    """Returns the texts of a program without shardings."""
    program = jax.jit(f).lower(*args).as_text("stablehlo", debug_info=True)
    return {"shlo_frontend": program, "ttir": jm.jit(f).trace(*args).as_text(debug_info=True)}


def changed(texts: dict[str, str], old: str, new: str) -> tuple[dict[str, str], int]:
    """Returns the texts with the first change of the TTIR text, and its line."""
    before, _, _ = texts["ttir"].partition(old)
    assert before != texts["ttir"]
    return {**texts, "ttir": texts["ttir"].replace(old, new, 1)}, before.count("\n") + 1


def test_an_operation_is_named_with_the_proof_and_what_puts_it_right() -> None:
    x = np.linspace(0.1, 2, 64, dtype=np.float32).reshape(8, 8)
    wrong, at = changed(
        texts_of(lambda x: jnp.exp(x.T) * 2 + x, x), "permutation = array<i64: 1, 0>", "permutation = array<i64: 0, 1>"
    )
    found = jm.diagnose(wrong, x)
    assert (found.op, found.line) == ("ttir.permute", at)
    assert found.cause == "with permutation = [1, 0] it is right"
    assert found.proof is not None
    assert max(found.proof.before) > 0.1 > 1e-5 > max(found.proof.after)
    assert str(found).startswith("wrong: ttir.permute of test_diagnose.py:")


def test_a_wrong_value_that_equals_another_value_of_the_program_is_named() -> None:
    """Both halves are values of the program; the second one is read in the place of the first."""

    def f(x: Any) -> Any:
        return jnp.tanh(x[:, :4]) - x[:, 4:] * 3

    x = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    wrong, at = changed(
        texts_of(f, x),
        "begins = [0 : i32, 0 : i32], ends = [8 : i32, 4 : i32]",
        "begins = [0 : i32, 4 : i32], ends = [8 : i32, 8 : i32]",
    )
    found = jm.diagnose(wrong, x)
    assert (found.op, found.line) == ("ttir.slice_static", at)
    assert found.cause == "slice of other elements: with begins = [0, 0], ends = [8, 4] it is right"


def test_an_error_within_a_loop_is_named_with_its_iteration() -> None:
    body = """    %c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %c, %h = %arg0) : tensor<i32>, tensor<8x8xf32>
    cond {
      %t = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do {
      %a = stablehlo.tanh %h : tensor<8x8xf32>
      %b = stablehlo.add %a, %arg0 : tensor<8x8xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %b : tensor<i32>, tensor<8x8xf32>
    }
    return %r#1 : tensor<8x8xf32>"""
    types = "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
    loop = (
        "body_program = @body, initial = array<i64: 0>, limit = array<i64: 3>, output_indices = array<i64: 0>, "
        "state_count = 1 : i64, step = array<i64: 1>"
    )
    ttir = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x1>]>}} {{
  func.func private @body(%h: tensor<8x8xf32>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %0 = "ttir.sin"(%h) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "ttir.add"(%0, %x) : {types}
    return %1 : tensor<8x8xf32>
  }}
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %0 = "ttcore.while_loop"(%x, %x) <{{{loop}}}> : {types}
    return %0 : tensor<8x8xf32>
  }}
}}"""
    program = f"module {{\n  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {{\n{body}\n  }}\n}}"
    assert jm.diagnose({"shlo_frontend": program, "ttir": ttir.replace("ttir.sin", "ttir.tanh")}).verdict == "right"
    found = jm.diagnose({"shlo_frontend": program, "ttir": ttir})
    assert (found.op, found.line, found.iteration) == ("ttir.sin", 3, 0)
    assert "in iteration 0" in str(found)


def counted(indent: str, number: int, times: int, carried: str, body: str) -> str:
    """Returns a while loop of StableHLO that goes round some times; `body` makes `%b<number>` of `%h<number>`."""
    n, kind = number, "tensor<8x8xf32>"
    return f"""{indent}%c{n} = stablehlo.constant dense<0> : tensor<i32>
{indent}%n{n} = stablehlo.constant dense<{times}> : tensor<i32>
{indent}%one{n} = stablehlo.constant dense<1> : tensor<i32>
{indent}%r{n}:2 = stablehlo.while(%i{n} = %c{n}, %h{n} = {carried}) : tensor<i32>, {kind}
{indent}cond {{
{indent}  %t{n} = stablehlo.compare LT, %i{n}, %n{n} : (tensor<i32>, tensor<i32>) -> tensor<i1>
{indent}  stablehlo.return %t{n} : tensor<i1>
{indent}}} do {{
{body}
{indent}  %j{n} = stablehlo.add %i{n}, %one{n} : tensor<i32>
{indent}  stablehlo.return %j{n}, %b{n} : tensor<i32>, {kind}
{indent}}}"""


@pytest.mark.slow(but_one_in=4)
@pytest.mark.parametrize(
    ("wrong", "op"), [("ttir.sin", "ttir.sin"), ("ttir.tanh", "ttir.subtract")], ids=["function", "arithmetic"]
)
def test_an_error_within_a_loop_of_a_loop_is_named_with_both_iterations(wrong: str, op: str) -> None:
    inner = counted("      ", 1, 2, "%h0", "        %a = stablehlo.tanh %h1 : tensor<8x8xf32>\n"
                    "        %b1 = stablehlo.add %a, %arg0 : tensor<8x8xf32>")  # fmt: skip
    scaled = "\n      %b0 = stablehlo.multiply %r1#1, %arg0 : tensor<8x8xf32>"
    body = counted("    ", 0, 3, "%arg0", inner + scaled) + "\n    return %r0#1 : tensor<8x8xf32>"
    program = f"module {{\n  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {{\n{body}\n  }}\n}}"
    types = "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"

    def loop(name: str, limit: int) -> str:
        return (
            f"body_program = @{name}, initial = array<i64: 0>, limit = array<i64: {limit}>, output_indices = "
            "array<i64: 0>, state_count = 1 : i64, step = array<i64: 1>"
        )

    ttir = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x1>]>}} {{
  func.func private @inner(%h: tensor<8x8xf32>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %0 = "ttir.tanh"(%h) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "ttir.add"(%0, %x) : {types}
    return %1 : tensor<8x8xf32>
  }}
  func.func private @outer(%h: tensor<8x8xf32>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %0 = "ttcore.while_loop"(%h, %x) <{{{loop("inner", 2)}}}> : {types}
    %1 = "ttir.multiply"(%0, %x) : {types}
    return %1 : tensor<8x8xf32>
  }}
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %0 = "ttcore.while_loop"(%x, %x) <{{{loop("outer", 3)}}}> : {types}
    return %0 : tensor<8x8xf32>
  }}
}}"""
    assert jm.diagnose({"shlo_frontend": program, "ttir": ttir}).verdict == "right"
    planted = ttir.replace("ttir.tanh", wrong) if wrong != "ttir.tanh" else ttir.replace("ttir.add", op)
    found = jm.diagnose({"shlo_frontend": program, "ttir": planted})
    assert (found.op, found.line, found.iteration) == (op, 3 + (op == "ttir.subtract"), (0, 0)), str(found)
    assert "in iteration 0, 0" in str(found)
    assert found.to_dict()["iteration"] == [0, 0]


@pytest.mark.slow
def test_a_rounding_that_decides_is_no_error() -> None:
    """A division by a reciprocal differs in the last bit, which a round of ties makes a whole number."""
    x = np.random.default_rng(0).standard_normal((16, 32), np.float32)

    def quantised(x: Any, divide: Any) -> Any:
        return jnp.round(divide(x, jnp.max(jnp.abs(x), 1, keepdims=True) / np.float32(127.5)))

    program = jax.jit(lambda x: quantised(x, jnp.divide)).lower(x).as_text("stablehlo")
    printed = jm.jit(lambda x: quantised(x, lambda a, b: a * (1 / b))).trace(x).as_text()
    found = jm.diagnose({"shlo_frontend": program, "ttir": printed}, x)
    assert found.verdict == "less precise"
    assert found.cause.startswith("rounding decides at ")
    assert jm.diagnose({"shlo_frontend": program, "ttir": printed.replace("ttir.gt", "ttir.lt")}, x).verdict == "wrong"


def test_a_result_that_is_laid_out_otherwise_than_asked_is_wrong() -> None:
    body = "    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    placed = '(tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>})'

    def compiled(*axes: str) -> str:
        out = ", ".join(f'{{"{a}"}}' if a else "{}" for a in axes)
        # Only the shardings of the region are read.
        count = 1 if axes[1] else 4
        parts = f"{', '.join(['%1'] * count)}, dim = 1"
        region = f"""    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{{"y"}}, {{"x"}}]>]
        out_shardings=[<@mesh, [{out}]>] manual_axes={{"y", "x"}} (%a: tensor<4x2xf32>) {{
      %1 = stablehlo.tanh %a : tensor<4x2xf32>
      %2 = stablehlo.concatenate {parts} : ({", ".join(["tensor<4x2xf32>"] * count)}) -> tensor<4x{2 * count}xf32>
      sdy.return %2 : tensor<4x{2 * count}xf32>
    }} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>"""
        return frontend("%arg0: tensor<8x8xf32>", region, "tensor<8x8xf32>")

    ttir = line(0, "tanh", "%a", "", "(tensor<4x2xf32>) -> tensor<4x2xf32>") + "    return %0 : tensor<4x2xf32>"
    texts = {
        "shlo_frontend": frontend(sharded(0, "8x8xf32", "y", "x"), body, placed),
        "ttir": local({"a": "4x2xf32"}, ttir, "4x2xf32"),
    }
    assert jm.diagnose({**texts, "shlo_compiler": compiled("y", "x")}).verdict == "right"
    gathered = line(
        1,
        "all_gather",
        "%0",
        "all_gather_dim = 1 : si32, cluster_axis = 1 : ui32",
        "(tensor<4x2xf32>) -> tensor<4x8xf32>",
    )
    whole = ttir.replace("    return %0 : tensor<4x2xf32>", f"{gathered}    return %1 : tensor<4x8xf32>")
    other = {**texts, "ttir": local({"a": "4x2xf32"}, whole, "4x8xf32"), "shlo_compiler": compiled("y", "")}
    found = jm.diagnose(other)
    assert (found.verdict, found.stage) == ("wrong", "shlo_compiler")
    assert found.cause == "result 0 is asked as P('y', 'x') and made as P('y', None)"


@pytest.mark.parametrize(
    ("last", "kind", "verdict", "held"),
    [
        ("", "4x8xf32", "wrong", "P('y', None)"),
        ('"ttir.all_gather"(%0) <{all_gather_dim = 0 : si32, cluster_axis = 0 : ui32}>', "8x8xf32", "wrong", "P()"),
        (
            '"ttir.mesh_shard"(%0) <{shard_dims = array<i64: 0, -1>, shard_shape = array<i64: 2, 1>, shard_direction = '
            "#ttcore.shard_direction<shard_to_full>, shard_type = #ttcore.shard_type<devices>}>",
            "8x8xf32",
            "right",
            "",
        ),
    ],
)
def test_a_result_that_is_asked_in_shards_and_marked_whole(last: str, kind: str, verdict: str, held: str) -> None:
    body = "    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    placed = '(tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})'
    rows = line(0, "tanh", "%a", "", "(tensor<4x8xf32>) -> tensor<4x8xf32>")
    rows += f"    %1 = {last} : (tensor<4x8xf32>) -> tensor<8x8xf32>\n" if last else ""
    ttir = local({"a": "4x8xf32"}, f"{rows}    return %{int(bool(last))} : tensor<{kind}>", kind)
    head, arrow, end = ttir.partition(f"-> (tensor<{kind}> {{")
    whole = head + arrow + end.replace("presharded", "unsharded", 1)
    found = jm.diagnose({"shlo_frontend": frontend(sharded(0, "8x8xf32", "y", ""), body, placed), "ttir": whole})
    assert found.verdict == verdict, found
    wanted = (
        f"result 0 is asked as P('y', None) and marked unsharded, which says one whole array of the host; "
        f"the devices hold {held}"
    )
    assert found.cause == (wanted if held else "")


@pytest.mark.parametrize(
    ("kind", "marks", "cause"),
    [
        ("4x8xf32", {}, ""),
        (
            "8x2xf32",
            {},
            "argument 0 is asked as P('y', None), of which a device has the shape [4, 8], and made with the shape "
            "[8, 2]",
        ),
        (
            "8x8xf32",
            {"presharded": "unsharded"},
            "argument 0 is asked as P('y', None) and marked unsharded, which says one whole array of the host; the "
            "devices hold P()",
        ),
    ],
)
def test_an_argument_that_is_laid_out_otherwise_is_wrong(kind: str, marks: dict[str, str], cause: str) -> None:
    body = "    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    rows = line(0, "tanh", "%a", "", f"(tensor<{kind}>) -> tensor<{kind}>")
    ttir = local({"a": kind}, f"{rows}    return %0 : tensor<{kind}>", kind)
    for old, new in marks.items():
        ttir = ttir.replace(old, new)
    found = jm.diagnose(
        {"shlo_frontend": frontend(sharded(0, "8x8xf32", "y", ""), body, "tensor<8x8xf32>"), "ttir": ttir}
    )
    assert (found.verdict, found.cause) == ("wrong" if cause else "right", cause)
    assert found.stages["ttir"].startswith(f"{found.verdict}, {cause}")


def test_infinite_errors_are_named() -> None:
    x = jnp.ones((8, 4))
    texts = texts_of(lambda x: jnp.where(jnp.flip(x, 0) < 0, jnp.nan, x), x)
    number, rows = line_of(texts["ttir"], "ttir.reverse"), texts["ttir"].split("\n")
    assert "dimensions = array<i64: 0>" in rows[number - 1]
    rows[number - 1] = rows[number - 1].replace("array<i64: 0>", "array<i64: 1>")
    found = jm.diagnose({**texts, "ttir": "\n".join(rows)})
    assert (found.verdict, found.op) == ("wrong", "ttir.reverse")
    assert "their largest error is NaN or infinities, then " in str(found.proof)


def test_an_argument_that_is_split_otherwise_than_asked_is_wrong() -> None:
    asked = sharded(0, "8x8xf32", "y", "x")
    body = "    %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>\n    return %0 : tensor<8x8xf32>"
    region = """    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {"y"}]>]
        out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"y", "x"} (%a: tensor<2x4xf32>) {
      %1 = stablehlo.tanh %a : tensor<2x4xf32>
      sdy.return %1 : tensor<2x4xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>"""
    ttir = line(0, "tanh", "%a", "", "(tensor<2x4xf32>) -> tensor<2x4xf32>") + "    return %0 : tensor<2x4xf32>"
    found = jm.diagnose(
        {
            "shlo_frontend": frontend(asked, body, "tensor<8x8xf32>"),
            "shlo_compiler": frontend("%arg0: tensor<8x8xf32>", region, "tensor<8x8xf32>"),
            "ttir": local({"a": "2x4xf32"}, ttir, "2x4xf32"),
        }
    )
    assert (found.verdict, found.stage) == ("wrong", "shlo_compiler")
    assert found.cause == "argument 0 is asked as P('y', 'x') and made as P('x', 'y')"


def test_a_read_of_a_deallocated_value_is_wrong() -> None:
    texts = exported(TEXTS["remat"])
    rows = texts["ttnn"].split("\n")
    number = line_of(texts["ttnn"], "ttnn.sin")
    (operand,) = re.findall(r"\((%\w+)\)", rows[number - 1])[:1]
    freed = next(row for row in rows[number:] if f'"ttnn.deallocate"({operand})' in row)
    rows.remove(freed)
    rows.insert(number - 1, freed)
    found = jm.diagnose({**texts, "ttnn": "\n".join(rows)})
    assert (found.verdict, found.op, found.line) == ("wrong", "ttnn.sin", number + 1)
    assert found.cause == f"it reads a value that line {number} deallocates"


def test_devices_that_hold_the_same_are_one_row() -> None:
    texts = texts_of(jnp.tanh, X)
    found = str(jm.diagnose({**texts, "ttir": texts["ttir"].replace("ttir.tanh", "ttir.sin")}, X))
    assert sum("elements, in [" in row for row in found.split("\n")) == 1


def test_several_programs_of_a_folder(tmp_path: Path) -> None:
    texts = exported(TEXTS["tensor and data parallel mlp"])
    write_folder(texts, tmp_path)
    wrong = re.sub(r"(all_reduce.*cluster_axis = )1", r"\g<1>0", texts["ttir"])
    for number, (stage, text) in enumerate({**texts, "ttir": wrong}.items()):
        (tmp_path / "irs" / f"{stage}_{1795531319000 + number}.mlir").write_text(text)
    assert jm.diagnose(tmp_path).verdict == "wrong"


def test_source_lines() -> None:
    aliases = '#loc1 = loc("a.py":3:4 to :9)\n#loc2 = loc("g"(#loc1))\n#loc3 = loc(callsite(#loc9 at #loc2))'
    text = f"%0 = f loc(#loc3)\n{aliases}"
    assert SourceLines.of(text).at(1) == "a.py:3:4"
    assert SourceLines.of("%0 = f").at(1) == ""
    assert SourceLines.of('%0 = f loc("-":8:2)').at(1) == "-:8:2"
    assert SourceLines.of('%0 = f loc(callsite("-":8:2 at "a.py":3:4))').at(1) == "a.py:3:4"


# --- minimising ------------------------------------------------------------------------------------------------------


def reversing(text: str, **_: Any) -> Any:
    """A compiler that forgets to exchange the shards of a reversal."""
    traced = jm.from_mlir(text)
    ttir = traced.as_text()
    rows = re.search(r'%(\w+) = "ttir.reverse"\(%(\w+)\)', ttir)
    if rows is None:
        return SimpleNamespace(refusal="no reversal", stages={}, ttir="", ttnn="")
    ttir = re.sub(r"dimensions = array<i64: 0>", "dimensions = array<i64>", ttir)
    return SimpleNamespace(refusal=None, stages={}, ttir=ttir, ttnn="")


def check_in_a_process(program: str | None, folder: Path) -> None:
    """The printed program, run in a new process up to its lowering, fails in the same way."""
    assert program is not None
    lowered, _, last = program.rpartition(".compile(")
    assert last == 'compiler_options={"export_path": "export"})'
    path = folder / "part.mlir"
    code = f"{lowered.replace('jax.jit(', 'lowered = jax.jit(')}\nprint(lowered.as_text())"
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    path.write_text(done.stdout)
    found = jm.diagnose(path, compiler=reversing)
    assert (found.verdict, found.op) == ("wrong", "ttir.reverse")


@pytest.mark.slow
def test_a_program_is_minimised(tmp_path: Path) -> None:
    def model(x: Any, w: Any) -> Any:
        return jnp.tanh((jnp.sin(x) @ w)[::-1]) @ w

    shardings = tuple(jax.sharding.NamedSharding(TEXTS["remat"].mesh, s) for s in (P("y"), P(None, "x")))
    text = jax.jit(model, in_shardings=shardings).lower(X, SQUARE).as_text("stablehlo")
    path = tmp_path / "model.mlir"
    path.write_text(text)
    found = jm.diagnose(path, compiler=reversing)
    assert (found.verdict, found.op) == ("wrong", "ttir.reverse")
    small = jm.minimize(found, compiler=reversing)
    assert small is not None
    assert small.operations == 1
    assert "tensor<8x16xf32>" not in small.stablehlo
    check_in_a_process(small.jax, tmp_path)
    assert (
        jm.diagnose(tmp_path / "model.mlir", compiler=lambda _: SimpleNamespace(refusal="no", stages={})).exit_code == 3
    )


@pytest.mark.parametrize("name", ["tensor and data parallel mlp", "softmax over a split dim", "concatenate", "reverse"])
def test_the_jax_program_is_the_stablehlo(name: str) -> None:
    """The program of a whole case, run by JAX, equals the case."""
    module = importlib.import_module("jaxmesh.analysis.diagnose.as_jax")
    case = TEXTS[name]
    reference = next(run_draws(exported(case)["shlo_frontend"], "", None, 0))
    ops = [o.operation for o in reference.block.operations]
    inputs = list(reference.block.arguments)
    places = [((),) * len(v.type.shape) for v in inputs]
    text = module.as_jax(ops[:-1], inputs, ops[-1].operands[0], places, None, {"y": 2, "x": 4})
    assert text is not None
    scope: dict[str, Any] = {}
    exec(text.rpartition("jax.jit")[0], scope)
    arguments = [v.array for v in reference.values[: len(inputs)]]
    wanted = reference.values[reference.outputs[0]].array
    np.testing.assert_allclose(scope["f"](*arguments), wanted, rtol=1e-5, atol=1e-5)


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_llama_block_split_over_both_axes() -> None:
    specs = (P("y"), *HEADS, P("x"), P("y", "x"), P("y", "x"), P("x", "y"))
    case = Case("block", llama_block, (BATCH, *FOUR, SQUARE, SQUARE, SQUARE), specs)
    assert jm.diagnose(exported(case)).verdict == "right"


def test_another_seed_gives_the_same_verdict() -> None:
    texts = exported(Case("mlp", mlp, (X, W, V), (P("y"), P(None, "x"), P("x"))))
    assert {jm.diagnose(texts, seed=s).verdict for s in range(3)} == {"right"}


def test_what_the_compiler_returned_is_a_source() -> None:
    frontend = jax.jit(jnp.tanh).lower(X).as_text("stablehlo")
    texts = {"shlo_frontend": frontend, "ttir": jm.jit(jnp.tanh).trace(X).as_text()}
    assert jm.diagnose(UpstreamProgram(texts)).verdict == "right"
    wrong = {**texts, "ttir": texts["ttir"].replace("ttir.tanh", "ttir.sin")}
    assert jm.diagnose(UpstreamProgram(wrong), X).op == "ttir.sin"
    refused = jm.diagnose(UpstreamProgram({}, refusal=UpstreamRefusal("no rule", "f.py:3:1")))
    assert (refused.verdict, refused.cause) == ("refused", "f.py:3:1: no rule")
