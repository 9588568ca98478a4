"""A text is compared with the right text before it, the partitioned program before TTIR, value by value."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.diagnose.earlier import EarlierText, HeldBefore, calls
from jaxmesh.analysis.diagnose.reference import run_draws
from jaxmesh.analysis.diagnose.replay import Replay
from jaxmesh.analysis.diagnose.stage import Copies, read_stage
from jaxmesh.dialects.program import Op, Type

X = jnp.ones((4, 8))
MESH = 'sdy.mesh @mesh = <["y"=2, "x"=1]>'
REGION = f"""module {{
  {MESH}
  func.func public @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {{
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{{"y"}}, {{}}]>] out_shardings=[<@mesh, [{{"y"}}, {{}}]>]
        manual_axes={{"y", "x"}} (%a: tensor<2x8xf32>) {{
      %1 = stablehlo.tanh %a : tensor<2x8xf32>
      %2 = stablehlo.constant dense<2.0> : tensor<2x8xf32>
      %3 = stablehlo.multiply %1, %2 : tensor<2x8xf32>
      %4 = stablehlo.constant dense<3.0> : tensor<2x8xf32>
      %5 = stablehlo.multiply %3, %4 : tensor<2x8xf32>
      sdy.return %5 : tensor<2x8xf32>
    }} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }}
}}
"""
"""`6 * tanh(x)` over two devices, in two steps."""


def stablehlo(f: Any, *args: Any) -> str:
    return jax.jit(f).lower(*args).as_text("stablehlo", debug_info=True)


def ttir(f: Any, *args: Any) -> str:
    return jm.jit(f, mesh=jm.make_mesh((1, 1))).trace(*args).as_text(debug_info=True)


def changed(text: str, old: str, new: str) -> tuple[str, int]:
    """Returns a text with the first match of an expression changed, and its line."""
    found = re.search(old, text)
    assert found is not None
    return text[: found.start()] + new + text[found.end() :], text.count("\n", 0, found.start()) + 1


def in_two_steps(x: Any) -> Any:
    return jnp.tanh(x) * 2 * 3


def test_a_number_that_the_compiler_made_is_named() -> None:
    wrong, line = changed(ttir(in_two_steps, X), r"fill_value = 3\S*", "fill_value = 5.0")
    texts = {"shlo_frontend": stablehlo(lambda x: jnp.tanh(x) * 6, X), "ttir": wrong}
    found = jm.diagnose({**texts, "shlo_compiler": stablehlo(in_two_steps, X)})
    assert (found.verdict, found.line, found.cause) == ("wrong", line, "with 3 in its place it is right")
    # The program has no 3.
    assert jm.diagnose(texts).line != line


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, c: jnp.tanh(c * 2 * 0.75), x)


def looped_in_one_step(x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, c: jnp.tanh(c * 1.5), x)


def test_only_what_depends_on_no_argument_is_proposed_for_a_number() -> None:
    rows = [HeldBefore({(0,): np.full(3, float(n), np.float32)}, n == 2) for n in range(4)]
    kind = Type((3,), np.dtype(np.float32))
    number, negation = Op("ttir.full", (), (0,)), Op("ttir.neg", (0,), (1,))
    # It reads the device alone.
    on_device = Op("ttnn.full", (2,), (0,))
    found = [
        list(EarlierText(rows).in_place(0, op, [kind, kind, replace(kind, kind="device")]))
        for op in (number, on_device, negation)
    ]
    assert [[p.right[0,][0] for p in made] for made in found] == [[2], [2], [0, 1, 2, 3]]


def test_a_number_is_named_that_the_right_text_has_elsewhere() -> None:
    def function(x: Any, rows: Any) -> Any:
        return jnp.where(rows + 2 > 20, x, jnp.tanh(x)) + (rows * 3 + rows // 2) + x * 3.0

    program = jm.jit(function, mesh=jm.make_mesh((1, 1)))
    x = np.linspace(0.1, 2, 64, dtype=np.float32).reshape(8, 8)
    rows = np.arange(64, dtype=np.int32).reshape(8, 8)
    wrong, line = changed(program.lower(x, rows).as_text(), r"fill_value = 3 : ", "fill_value = 2 : ")
    texts = {"shlo_frontend": stablehlo(function, x, rows), "ttir": program.trace(x, rows).as_text(), "ttnn": wrong}
    found = jm.diagnose(texts)
    assert (found.verdict, found.line, found.cause) == ("wrong", line, "with 3 in its place it is right"), str(found)


def test_a_number_in_a_loop_is_named() -> None:
    program = jm.jit(looped, mesh=jm.make_mesh((1, 1)))
    wrong, line = changed(program.lower(X).as_text(unroll_limit=3), r"fill_value = 7\.5\S*", "fill_value = 0.25")
    assert "ttcore.while_loop" in wrong
    # The program has no 0.75, which the right text has.
    texts = {"shlo_frontend": stablehlo(looped_in_one_step, X), "shlo_compiler": stablehlo(looped, X), "ttnn": wrong}
    found = jm.diagnose({**texts, "ttir": program.trace(X).as_text(unroll_limit=3)})
    assert (found.verdict, found.line, found.cause) == ("wrong", line, "with 0.75 in its place it is right")


LOOP = """%c = stablehlo.constant dense<0> : tensor<i32>
      %1:2 = stablehlo.while(%i = %c, %v = %a) : tensor<i32>, tensor<2x8xf32>
      cond {
        %2 = stablehlo.constant dense<4> : tensor<i32>
        %3 = stablehlo.compare LT, %i, %2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %3 : tensor<i1>
      } do {
        %2 = stablehlo.constant dense<2.0> : tensor<2x8xf32>
        %3 = stablehlo.multiply %v, %2 : tensor<2x8xf32>
        %4 = stablehlo.constant dense<0.75> : tensor<2x8xf32>
        %5 = stablehlo.multiply %3, %4 : tensor<2x8xf32>
        %6 = stablehlo.tanh %5 : tensor<2x8xf32>
        %7 = stablehlo.constant dense<1> : tensor<i32>
        %8 = stablehlo.add %i, %7 : tensor<i32>
        stablehlo.return %8, %6 : tensor<i32>, tensor<2x8xf32>
      }
      sdy.return %1#1"""


def test_a_number_in_a_loop_of_a_region_is_named() -> None:
    mesh = jm.make_mesh((2, 1), ("y", "x"))
    text = jm.jit(looped, mesh=mesh, in_shardings=P("y")).trace(X).as_text(unroll_limit=3)
    wrong, line = changed(text, r"fill_value = 7\.5\S*", "fill_value = 0.25")
    frontend = jax.jit(looped_in_one_step, in_shardings=NamedSharding(mesh, P("y"))).lower(X).as_text()
    region = re.sub(r"%1 = stablehlo.tanh.*sdy.return %5", lambda _: LOOP, REGION, flags=re.S)
    texts = {"shlo_frontend": frontend, "shlo_compiler": region}
    assert jm.diagnose({**texts, "ttir": text}).verdict == "right"
    found = jm.diagnose({**texts, "ttir": wrong})
    assert (found.verdict, found.line, found.cause) == ("wrong", line, "with 0.75 in its place it is right")
    # How often a loop goes round is seen.
    other = region.replace("compare LT, %i, %2", "compare GT, %2, %i")
    assert jm.diagnose({**texts, "shlo_compiler": other, "ttir": wrong}).line == line


def ring(x: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        x, total = state
        return lax.ppermute(x, "y", [(0, 1), (1, 0)]), total + jnp.exp(-(x * x)) * x

    return lax.fori_loop(0, 4, body, (x, x * 0))[1]


@pytest.mark.parametrize(("old", "new"), [("ttir.exp", "ttir.tanh"), ("ttir.neg", "ttir.abs")])
def test_an_operation_in_a_loop_of_shard_map_is_named(old: str, new: str) -> None:
    mesh = jm.make_mesh((2,), ("y",))
    program = jax.shard_map(ring, mesh=mesh, in_specs=P("y"), out_specs=P("y"))
    text = jm.jit(program, mesh=mesh, in_shardings=P("y")).trace(X).as_text(unroll_limit=4)
    assert "ttcore.while_loop" in text
    texts = {"shlo_frontend": jax.jit(program).lower(X).as_text("stablehlo", debug_info=True)}
    assert jm.diagnose({**texts, "ttir": text}).verdict == "right"
    wrong, line = changed(text, old, new)
    found = jm.diagnose({**texts, "ttir": wrong})
    assert (found.verdict, found.op, found.line) == ("wrong", new, line)


def until_small(x: Any) -> Any:
    def body(state: Any) -> Any:
        x, _ = state
        every = lax.all_gather(jnp.tanh(x), "y", axis=1, tiled=True)
        x = 0.5 * x + 0.01 * every.sum(1, keepdims=True)
        return x, lax.psum((x * x).sum(), "y")

    x, total = lax.while_loop(lambda s: s[1] > 0.1, body, (x, lax.psum((x * x).sum(), "y")))
    return x + total


def halved(x: Any) -> Any:
    def goes_on(state: Any) -> Any:
        n, x = state
        return (lax.psum((x * x).sum(), "y") > 0.1) & (n < 12)

    n, x = lax.while_loop(goes_on, lambda s: (s[0] + 1, s[1] * 0.5), (0, x))
    return jnp.where(n < 4, jnp.tanh(x), jnp.sin(x))


def branched(x: Any) -> Any:
    number = jnp.where(lax.psum((x * x).sum(), "y") > 0, 1, 2)
    branches = [jnp.sin, lambda x: lax.cond(number > 0, lambda x: jnp.exp(-x * x), jnp.tanh, x), jnp.cos]
    return lax.switch(number, branches, lax.ppermute(x, "y", [(0, 1), (1, 0)]))


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        (until_small, "ttir.tanh", "ttir.sin"),
        (
            until_small,
            r"(?<=%11\) <\{cluster_axis = 0 : ui32, reduce_type = #ttcore\.)reduce_type<sum>",
            "reduce_type<max>",
        ),
        (until_small, r"(?<=fill_value = )1\.0+e-01", "5.0"),
        # It has no end.
        pytest.param(until_small, "ttir.gt", "ttir.lt", marks=pytest.mark.slow),
        (branched, "ttir.exp", "ttir.tanh"),
        (branched, "ttir.neg", "ttir.abs"),
    ],
    ids=["function", "reduction", "number of a test", "test", "branch", "branch of a branch"],
)
def test_an_error_in_what_devices_see_is_named(function: Any, old: str, new: str) -> None:
    """Only the run says how often the loop goes round, and which branches are taken."""
    mesh = jm.make_mesh((2,), ("y",))
    program = jax.shard_map(function, mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False)
    text = jm.jit(program, mesh=mesh, in_shardings=P("y")).trace(X).as_text()
    assert "ttcore.while_loop" in text or function is branched
    texts = {"shlo_frontend": jax.jit(program).lower(X).as_text("stablehlo", debug_info=True)}
    assert jm.diagnose({**texts, "ttir": text}).verdict == "right"
    wrong, line = changed(text, old, new)
    found = jm.diagnose({**texts, "ttir": wrong})
    assert (found.verdict, found.line) == ("wrong", line), str(found)


def test_a_loop_before_a_branch_is_followed_as_the_program_goes() -> None:
    """With the wrong number of iterations, the text takes another branch, too."""
    mesh = jm.make_mesh((2,), ("y",))
    program = jax.shard_map(halved, mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False)
    text = jm.jit(program, mesh=mesh, in_shardings=P("y")).trace(X).as_text(unroll_limit=4)
    made = "(tensor<i1>, tensor<2x8xf32>) -> tensor<2x8xf32>"
    case = f'"ttcore.case"(%4, %2#1) <{{branch_programs = [@sin, @tanh]}}> : {made}'
    text, _ = changed(text, r'"ttir.where"\(.*', case)
    for name in ("sin", "tanh"):
        branch = f"""func.func private @{name}(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {{
    %0 = "ttir.{name}"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }}
  func.func private"""
        text, _ = changed(text, "func.func private", branch)
    texts = {"shlo_frontend": jax.jit(program).lower(X).as_text("stablehlo", debug_info=True)}
    assert jm.diagnose({**texts, "ttir": text}).verdict == "right"
    wrong, line = changed(text, r"(?<=fill_value = )1\.0+e-01", "5.0")
    found = jm.diagnose({**texts, "ttir": wrong})
    assert (found.verdict, found.line) == ("wrong", line), str(found)


APART = """module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2>]>}} {{
  func.func private @half(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {{
    %0 = "ttir.tanh"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = "ttir.full"() <{{fill_value = {half} : f32, shape = array<i32: 2, 8>}}> : () -> tensor<2x8xf32>
    %2 = "ttir.multiply"(%0, %1) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    return %2 : tensor<2x8xf32>
  }}
  func.func private @sin(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {{
    %0 = "ttir.sin"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }}
  func.func private @power(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {{
    %0 = "ttir.{power}"(%arg0) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = "ttir.multiply"(%0, %arg0) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    return %1 : tensor<2x8xf32>
  }}
  func.func @main(%arg0: tensor<4x8xf32>, %arg1: tensor<2xi32>) -> tensor<4x8xf32> {{
    %0 = "ttir.mesh_shard"(%arg0) <{{{to}, shard_shape = array<i64: 2, 1>}}> : (tensor<4x8xf32>) -> tensor<2x8xf32>
    %1 = "ttir.mesh_shard"(%arg1) <{{{to}, shard_shape = array<i64: 2>}}> : (tensor<2xi32>) -> tensor<1xi32>
    %2 = "ttir.reshape"(%1) <{{shape = []}}> : (tensor<1xi32>) -> tensor<i32>
    %3 = "ttcore.case"(%2, %0) <{{branch_programs = [{order}]}}> : (tensor<i32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    %4 = "ttir.mesh_shard"(%3) <{{{back}, shard_shape = array<i64: 2, 1>}}> : (tensor<2x8xf32>) -> tensor<4x8xf32>
    return %4 : tensor<4x8xf32>
  }}
}}
"""
"""Branches that devices take apart."""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"half": "0.75"}, 4),
        ({"power": "cos"}, 13),
        ({"order": "@half, @power, @sin"}, 21),
    ],
)
def test_an_error_in_a_branch_that_one_device_takes_is_named(change: dict[str, str], line: int) -> None:
    mesh = jm.make_mesh((2,), ("y",))

    def apart(x: Any, mode: Any) -> Any:
        return lax.switch(mode[0], [lambda v: jnp.tanh(v) * 0.5, jnp.sin, lambda v: jnp.exp(v) * v], x)

    program = jax.shard_map(apart, mesh=mesh, in_specs=P("y"), out_specs=P("y"), check_vma=False)
    x = jnp.linspace(-1, 1, 32).reshape(4, 8)
    words = "shard_dims = array<i64: 0>, shard_type = #ttcore.shard_type<devices>"
    words += ", shard_direction = #ttcore.shard_direction<{}>"
    right = {"to": words.format("full_to_shard"), "back": words.format("shard_to_full")}
    right |= {"half": "0.5", "power": "exp", "order": "@half, @sin, @power"}
    texts = {"shlo_frontend": jax.jit(program).lower(x, jnp.arange(2)).as_text("stablehlo", debug_info=True)}
    for first in (0, 1):
        args = x, jnp.arange(first, first + 2)
        assert jm.diagnose({**texts, "ttir": APART.format(**right)}, *args).verdict == "right"
    found = jm.diagnose({**texts, "ttir": APART.format(**{**right, **change})}, x, jnp.array([0, 2]))
    assert (found.verdict, found.line) == ("wrong", line), str(found)


def with_stray_transposition(text: str, kind: str) -> tuple[str, int]:
    """Returns a text with a transposition of the sine, at its location, and the line."""
    found = re.search(r"(%\d+) = \"ttir\.sin\".* (loc\(.*\))\n", text)
    assert found is not None
    call = f'"ttir.permute"({found[1]}) <{{permutation = array<i64: 1, 0>}}>'
    stray = f"    %s = {call} : ({kind}) -> {kind} {found[2]}\n"
    before = text[: found.end()]
    return before + stray + re.sub(rf"{found[1]}\b", "%s", text[found.end() :]), before.count("\n") + 1


def summed(x: Any, w: Any) -> Any:
    return x @ w + (jnp.sin(x) * 0.5) @ w


def test_a_movement_at_an_operation_on_elements_is_one_too_many() -> None:
    """Its reader, a product of matrices, might instead be one of a transposed operand."""
    x, w = (jnp.asarray(np.random.default_rng(n).normal(size=(16, 16)), jnp.float32) for n in (1, 2))
    wrong, line = with_stray_transposition(ttir(summed, x, w), "tensor<16x16xf32>")
    said = jm.diagnose({"shlo_frontend": stablehlo(summed, x, w), "ttir": wrong}, x, w)
    assert (said.line, said.cause) == (line, "one too many: without it the results are right")


def deep(x: Any, w: Any, kind: Any = None) -> Any:
    for _ in range(4):
        x = jnp.tanh(x.astype(kind or x.dtype) @ w.astype(kind or w.dtype)).astype(x.dtype)
    return x + (jnp.sin(x) * 0.05) @ w


def test_a_change_that_no_rounding_explains_is_an_error() -> None:
    """A result is within what roundings may grow to, and further than other roundings of the program make it."""
    x, w = (jnp.asarray(np.random.default_rng(n).normal(size=(16, 16)) / 2, jnp.bfloat16) for n in (1, 2))
    text = ttir(functools.partial(deep, kind=jnp.float32), x, w)
    wrong, line = with_stray_transposition(text, "tensor<16x16xbf16>")
    frontend = {"shlo_frontend": stablehlo(deep, x, w)}
    assert jm.diagnose({**frontend, "ttir": text}, x, w).verdict == "right"
    said = jm.diagnose({**frontend, "ttir": wrong}, x, w)
    assert (said.verdict, said.line, said.cause) == ("wrong", line, "one too many: without it the results are right")


def test_the_numbers_of_a_mask_hide_no_others() -> None:
    def copies(*numbers: float) -> Copies:
        return {(0,): np.float32(numbers)}

    known = EarlierText(map(HeldBefore, [copies(1e6, 3.5, -1e6), copies(1.0, 0.0, 0.5)]))
    assert known.has(copies(1e6, 3.5, -1e6))
    assert not known.has(copies(1e6, 3.6, -1e6))
    assert not known.has(copies(1e6, 3.5, 1e6))
    # Without a mask, what is small counts little.
    assert known.has(copies(1.0, 1e-9, 0.5))


TRUTHS = """module {{
  func.func @main(%a: tensor<4xi32>, %b: tensor<4xi32>) -> tensor<4xi1> {{
    %0 = "ttir.lt"({first}) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %1 = "ttir.ne"(%b, %a) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %2 = "ttir.logical_{how}"(%0, %1) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
    return %2 : tensor<4xi1>
  }}
}}"""


TWICE = '%3 = "ttir.ne"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>\n    %2 ='


@pytest.mark.parametrize(
    ("text", "performed"),
    [
        (TRUTHS.format(first="%a, %b", how="and"), {0, 1, 2}),
        (TRUTHS.format(first="%b, %a", how="and").replace("ttir.lt", "ttir.gt"), {0, 1, 2}),
        (TRUTHS.format(first="%a, %b", how="or"), {0, 1}),
        (TRUTHS.format(first="%b, %a", how="and"), {1}),
        # One of the two may be wrong: the right text has one.
        (TRUTHS.format(first="%a, %b", how="and").replace("%2 =", TWICE), {0, 3}),
    ],
)  # fmt: skip
def test_operations_that_the_right_text_has_too(text: str, performed: set[int]) -> None:
    numbers = [np.int32([1, 2, 3, 4]), np.int32([2, 2, 1, 5])]
    right, other = (read_stage("ttir", t, None) for t in (TRUTHS.format(first="%a, %b", how="and"), text))
    known, replay = Replay.of(right, numbers), Replay.of(other, numbers)
    made = EarlierText([], list(calls(enumerate(right.text.program.ops), known).values()))
    assert made.performs(enumerate(other.text.program.ops), replay) == performed


def test_a_wrong_mask_of_bfloat16_is_no_rounding() -> None:
    def masked(x: Any, i: Any, most: int) -> Any:
        return x + x * (i < most).astype(jnp.bfloat16).reshape(8, 1).astype(jnp.float32) / 64

    x, i = jnp.ones((8, 4)), jnp.arange(8)
    texts = {"shlo_frontend": jax.jit(lambda x, i: masked(x, i, 5)).lower(x, i).as_text("stablehlo")}
    for most, verdict in ((5, "right"), (6, "wrong")):
        text = ttir(functools.partial(masked, most=most), x, i)
        assert jm.diagnose({**texts, "ttir": text}).verdict == verdict


def test_the_values_of_a_region_are_those_of_each_device() -> None:
    types = "(tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>"
    split = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
    text = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x1>]>}} {{
  func.func @main(%a: tensor<2x8xf32> {split}) -> (tensor<2x8xf32> {split}) {{
    %0 = "ttir.tanh"(%a) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = "ttir.constant"() <{{value = dense<2.0> : tensor<2x8xf32>}}> : () -> tensor<2x8xf32>
    %2 = "ttir.multiply"(%0, %1) : {types}
    %3 = "ttir.constant"() <{{value = dense<NUMBER> : tensor<2x8xf32>}}> : () -> tensor<2x8xf32>
    %4 = "ttir.multiply"(%2, %3) : {types}
    return %4 : tensor<2x8xf32>
  }}
}}
"""
    frontend = f"""module {{
  {MESH}
  func.func public @main(%arg0: tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}})
      -> tensor<4x8xf32> {{
    %0 = stablehlo.tanh %arg0 : tensor<4x8xf32>
    %1 = stablehlo.constant dense<6.0> : tensor<4x8xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }}
}}
"""
    texts = {"shlo_frontend": frontend, "shlo_compiler": REGION}
    assert jm.diagnose({**texts, "ttir": text.replace("NUMBER", "3.0")}).verdict == "right"
    found = jm.diagnose({**texts, "ttir": text.replace("NUMBER", "5.0")})
    assert (found.verdict, found.op, found.line) == ("wrong", "ttir.constant", 6)
    # A partitioned program that is wrong itself, or that is none, is not compared.
    for other in (REGION.replace("dense<3.0>", "dense<5.0>"), frontend):
        assert jm.diagnose({**texts, "shlo_compiler": other, "ttir": text.replace("NUMBER", "5.0")}).line != 6


def test_a_partitioned_program_that_is_not_read_is_named() -> None:
    wrong, _ = changed(ttir(in_two_steps, X), "ttir.tanh", "ttir.sin")
    call = r"stablehlo.custom_call @nobody(\1) : (\2) -> \2"
    unknown = re.sub(r"stablehlo.tanh (%\w+) : (tensor<\w+>)", call, stablehlo(in_two_steps, X))
    texts = {"shlo_frontend": stablehlo(in_two_steps, X), "ttir": wrong}
    found = jm.diagnose({**texts, "shlo_compiler": unknown})
    assert (found.verdict, found.op) == ("wrong", "ttir.sin")
    assert found.stages["shlo_compiler"].startswith("not read")
    cut = {**texts, "shlo_compiler": unknown[: len(unknown) // 2]}
    found = jm.diagnose(cut)
    assert (found.verdict, found.op) == ("wrong", "ttir.sin")
    assert found.stages["shlo_compiler"].startswith("not read")
    found = jm.diagnose({**cut, "ttir": ttir(in_two_steps, X)})
    assert found.verdict == "right"
    assert found.stages["shlo_compiler"].startswith("not read")


def test_several_operations_that_make_one_value_in_turns_stay_an_interval() -> None:
    def greatest(x: Any) -> Any:
        return x.reshape(4, 4, 2).max(-1) * 2

    def in_turns(x: Any) -> Any:
        left, right = x[:, ::2], x[:, 1::2]
        return jnp.maximum(jnp.maximum(left, right), left) * 2

    text = ttir(in_turns, X)
    wrong, line = changed(text, r"begins = \[0 : i32, 1 : i32\]", "begins = [0 : i32, 0 : i32]")
    found = jm.diagnose(
        {"shlo_frontend": stablehlo(greatest, X), "shlo_compiler": stablehlo(greatest, X), "ttir": wrong}
    )
    lines = [int(n) for n in re.findall(r"lines? (\d+)(?: and line (\d+))?", str(found))[0] if n]
    assert found.verdict == "wrong"
    assert min(lines) <= line <= max(lines)


def test_a_loop_that_enlarges_roundings_is_not_wrong() -> None:
    """Each iteration doubles the differences: the last one has a thousand times the first's."""

    def logistic(x: Any, step: Any) -> Any:
        return jax.lax.fori_loop(0, 12, lambda _, y: step(y), jnp.tanh(x) ** 2 * 0.9 + 0.05)

    program = stablehlo(lambda x: logistic(x, lambda y: 3.9 * y * (1 - y)), X)
    otherwise = ttir(lambda x: logistic(x, lambda y: 3.9 * y - 3.9 * (y * y)), X)
    found = jm.diagnose({"shlo_frontend": program, "ttir": otherwise})
    assert found.verdict in ("right", "less precise")
    other = ttir(lambda x: logistic(x, lambda y: 3.5 * y - 3.5 * (y * y)), X)
    assert jm.diagnose({"shlo_frontend": program, "ttir": other}).verdict == "wrong"


SIGMOIDS = """module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x1>]>} {
  func.func @main(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = "ttir.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %1:2 = "ttcore.while_loop"(%0, %a) <{body_program = @body, initial = #ttcore.loop_bound<0>,
        limit = #ttcore.loop_bound<3>, output_indices = array<i32: 0, 1>, state_count = 2 : i32,
        step = #ttcore.loop_bound<1>}> : (tensor<i32>, tensor<4x8xf32>) -> (tensor<i32>, tensor<4x8xf32>)
    return %1#1 : tensor<4x8xf32>
  }
  func.func private @body(%i: tensor<i32>, %x: tensor<4x8xf32>) -> (tensor<i32>, tensor<4x8xf32>) {
    %0 = "ttir.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
    %1 = "ttir.constant"() <{value = dense<1.0> : tensor<4x8xf32>}> : () -> tensor<4x8xf32>
    %2 = "ttir.reshape"(%x) <{shape = [4 : i32, 8 : i32]}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %3 = "ttir.exp"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %4 = "ttir.add"(%1, %3) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %5 = "ttir.div"(%1, %4) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %6 = "ttir.multiply"(%5, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %7 = "ttir.add"(%i, %0) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    return %7, %6 : tensor<i32>, tensor<4x8xf32>
  }
}
"""


def test_what_lacks_a_value_of_the_right_text_in_all_iterations_is_named() -> None:
    """`e / (1 + e)` is `1 / (1 + 1 / e)`: the quotient of other operands is right, though a negation is left out."""

    def sigmoids(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: 1 / (1 + jnp.exp(-c)) * c, x)

    found = jm.diagnose(
        {"shlo_frontend": stablehlo(sigmoids, X), "shlo_compiler": stablehlo(sigmoids, X), "ttir": SIGMOIDS}
    )
    assert found.verdict == "wrong"
    # What does nothing stands in the place of the negation, in all iterations.
    assert (found.op, found.line) == ("ttir.reshape", 12)


@pytest.mark.slow
def test_a_region_is_followed_anew_for_each_draw() -> None:
    """A first draw gives NaN in a branch that the next one does not take."""

    def function(x: Any) -> Any:
        return lax.cond(lax.psum(x.sum(), "y") > 0, jnp.sqrt, lambda x: jnp.log(x) * 2, x)

    program = jax.shard_map(
        function, mesh=jm.make_mesh((2,), ("y",)), in_specs=P("y"), out_specs=P("y"), check_vma=False
    )
    text = jax.jit(program).lower(X).as_text("stablehlo", debug_info=True)
    for seed in range(4):
        for run in run_draws(text, "", None, seed):
            (number,) = run.outputs
            np.testing.assert_array_equal(run.values[number].array, program(*run.inputs))


def test_a_loop_that_no_draw_enters_is_said() -> None:
    def function(x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() > 1e30, lambda x: x * 0.5, x)

    text = jm.jit(function, mesh=jm.make_mesh((1, 1))).trace(X).as_text()
    found = jm.diagnose({"shlo_frontend": stablehlo(function, X), "ttir": text})
    assert found.verdict == "right"
    assert any("stablehlo.while never gave an iteration" in row for row in found.unexercised), found.unexercised


MASKED = """module {
  func.func public @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %t = "ttir.constant"() <{value = dense<true> : tensor<4x4xi1>}> : () -> tensor<4x4xi1>
    %f = "ttir.constant"() <{value = dense<true> : tensor<4x4xi1>}> : () -> tensor<4x4xi1>
    %r = "ttir.arange"() <{arange_dimension = 0 : i64, end = 4 : si64, start = 0 : si64, step = 1 : si64}>
        : () -> tensor<4x4xi32>
    %c = "ttir.arange"() <{arange_dimension = 1 : i64, end = 4 : si64, start = 0 : si64, step = 1 : si64}>
        : () -> tensor<4x4xi32>
    %ge = "ttir.ge"(%r, %c) : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
    %m = "ttir.where"(%ge, %t, %f) : (tensor<4x4xi1>, tensor<4x4xi1>, tensor<4x4xi1>) -> tensor<4x4xi1>
    %n = "ttir.full"() <{fill_value = -5.0 : f32, shape = array<i32: 4, 4>}> : () -> tensor<4x4xf32>
    %0 = "ttir.sin"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = "ttir.where"(%m, %0, %n) : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = "ttir.sin"(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = "ttir.where"(%m, %2, %n) : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %3 : tensor<4x4xf32>
  }
}
"""
"""Two layers that share a triangle of truth values, whose other half should be false."""


def test_a_number_is_named_before_the_operation_that_only_passes_its_condition_on() -> None:
    def layers(x: Any) -> Any:
        for _ in range(2):
            x = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), jnp.sin(x), -5.0)
        return x

    text = stablehlo(layers, jnp.ones((4, 4)))
    found = jm.diagnose({"shlo_frontend": text, "shlo_compiler": text, "ttir": MASKED})
    assert (found.verdict, found.op, found.line, found.cause) == (
        "wrong", "ttir.constant", 4, "with 0 in its place it is right",
    )  # fmt: skip


def test_an_operation_of_which_the_program_has_as_many_of_other_operands_is_one_too_many() -> None:
    def rows(t: Any, u: Any, i: Any) -> Any:
        return t[i] + jnp.tanh(u[i])

    args = X.reshape(8, 4), X.reshape(8, 4), jnp.zeros(6, jnp.int32)
    right = ttir(rows, *args)
    # The index is computed once, and doubled.
    wrong, line = changed(
        right, r'"ttir.where"\(%6, %7, %arg2\).*?->', '"ttir.add"(%4, %4) : (tensor<6xi32>, tensor<6xi32>) ->'
    )
    wrong = re.sub(r"\n.*%[67] =.*", "", wrong)
    found = jm.diagnose({"shlo_frontend": stablehlo(rows, *args), "ttir": right, "ttnn": wrong})
    assert (found.verdict, found.line, found.cause) == (
        "wrong",
        line - 2,
        "one too many: without it the results are right",
    )


def test_an_operation_within_what_the_right_text_has_as_one_is_one_too_many() -> None:
    """The right text has no indices."""

    def reversed_rows(x: Any) -> Any:
        return jnp.tanh(x[::-1])

    right, x = ttir(reversed_rows, X.reshape(8, 4)), X.reshape(8, 4)
    taken = """"ttir.constant"() <{value = dense<[7, 6, 5, 4, 3, 2, 1, 0]> : tensor<8xi32>}> : () -> tensor<8xi32>
    %twice = "ttir.add"(%at, %at) : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
    %0 = "ttir.embedding"(%twice, %arg0) : (tensor<8xi32>, tensor<8x4xf32>)"""
    wrong, line = changed(right, r'%0 = "ttir.reverse".*(?= ->)', f"%at = {taken}")
    found = jm.diagnose({"shlo_frontend": stablehlo(reversed_rows, x), "ttir": right, "ttnn": wrong})
    assert (found.verdict, found.line) == ("wrong", line + 1), str(found)


@pytest.mark.slow
def test_the_only_change_of_a_long_interval_is_named() -> None:
    """The program has one operation for the chain of shifts and sums, in which nothing has a counterpart."""

    def bits(x: Any) -> Any:
        return sum(lax.shift_right_logical(x * -1640531535, i) & 1 for i in range(32)).sum(1)

    x = jnp.zeros((4, 8), jnp.int32)
    right, program = ttir(bits, x), stablehlo(lambda x: lax.population_count(x * -1640531535).sum(1), x)
    at = [m.start() for m in re.finditer("ttir.add", right)][16]
    wrong = right[:at] + right[at:].replace("ttir.add", "ttir.subtract", 1)
    found = jm.diagnose({"shlo_frontend": program, "ttir": wrong})
    assert (found.verdict, found.line) == ("wrong", right.count("\n", 0, at) + 1), str(found)
    assert found.cause == "with ttir.add in its place it is right"
