"""Texts that JAX writes, read again: the same values, as Shardy's and as GSPMD's annotations, and as `jax.export`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from jaxmesh.frontends.stablehlo import shardy as shardy_passes
from jaxmesh.jaxprs import guarded_passes
from jaxmesh.jaxprs.guarded_passes import run_passes
from tests.generators.plain_programs import CASES, MESH, SQUARE, Case, V, W, X, mlp, on

OURS = {"mesh_shard by hand", "shard_map over one axis", "jm.jit inside"}
"""Programs that JAX alone does not lower, or, with some axes automatic, only as Shardy has them."""
PROGRAMS = [c for c in CASES if c.text and c.name not in OURS and "jm." not in c.name]


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ShardingWarning)
        warnings.simplefilter("ignore", errors.AssumptionWarning)
        yield


@contextlib.contextmanager
def partitioner(shardy: bool) -> Generator[None]:
    """Lowers for Shardy, or for GSPMD where JAX still does."""
    name = "jax_use_shardy_partitioner"
    if not hasattr(jax.config, name):
        if not shardy:
            pytest.skip("this JAX lowers for Shardy alone")
        yield
        return
    before = getattr(jax.config, name)
    jax.config.update(name, shardy)
    try:
        yield
    finally:
        jax.config.update(name, before)


def written(fun: Any, args: Any, shardy: bool, **options: Any) -> str:
    with partitioner(shardy):
        return jax.jit(fun, **options).lower(*args).as_text()


def assert_same(got: Any, want: Any) -> None:
    rows = zip(got if isinstance(got, tuple) else (got,), jax.tree.leaves(want), strict=True)
    for a, b in rows:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5 * (1 + np.max(np.abs(y), initial=0)))


@pytest.mark.slow(but_one_in=40)
@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name.replace(" ", "_"))
def test_a_program_is_read_as_jax_writes_it(case: Case, shardy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shardy:
        # The process that runs the passes is shown on Shardy's own annotations.
        monkeypatch.setattr(shardy_passes, "guarded_passes", run_passes)
    traced = jm.from_mlir(written(case.fun, case.args, shardy, **case.jax_options()), mesh=case.mesh)
    got = traced.lower().compile()(*jax.tree.leaves(case.args))
    assert_same(got, jax.jit(case.fun)(*case.args))


def test_shardy_runs_once_and_elsewhere_as_here(as_for_users: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = written(mlp, (X, W, V), True, in_shardings=(on("y"), on(None, "x"), on("x")))
    ran: list[Any] = []

    def note(*args: Any) -> None:
        ran.append(args)

    monkeypatch.setattr(guarded_passes, "run_passes", note)
    elsewhere = jm.from_mlir(text)
    assert not ran
    monkeypatch.setattr(shardy_passes, "guarded_passes", run_passes)
    here = jm.from_mlir(text)
    assert elsewhere.as_text() == here.as_text()
    assert elsewhere.decisions == here.decisions


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_the_mesh_and_the_shards_are_those_of_the_text(shardy: bool) -> None:
    text = written(mlp, (X, W, V), shardy, in_shardings=(on("y"), on(None, "x"), on("x")))
    assert ("sdy.mesh" in text) == shardy
    traced = jm.from_mlir(text)
    assert traced.mesh.axis_sizes == (2, 4)
    ttir = traced.as_text()
    for shape in ("4x16", "16x8", "8x16"):
        assert f"tensor<{shape}xf32>" in ttir
    # One sum over x alone: nothing is gathered.
    assert ttir.count("ttir.all_reduce") == 1
    assert "cluster_axis = 1 : ui32" in ttir
    assert "all_gather" not in ttir


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_a_shard_map_is_one_mesh_shard_per_end(shardy: bool) -> None:
    def product(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "x")

    mapped = jax.shard_map(product, mesh=MESH, in_specs=(P("y", "x"), P("x", None)), out_specs=P("y", None))
    traced = jm.from_mlir(written(mapped, (X, W), shardy))
    text = traced.as_text()
    assert (text.count("ttir.mesh_shard"), text.count("ttir.all_reduce")) == (3, 1)
    assert traced.assumptions == ()
    assert_same(traced.lower().compile()(X, W), X @ W)


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
def test_an_exported_program(shardy: bool) -> None:
    with partitioner(shardy):
        exported = jax.export.export(jax.jit(mlp, in_shardings=(on("y"), on(None, "x"), on("x"))))(X, W, V)
    traced = jm.from_mlir(exported.mlir_module())
    assert_same(traced.lower().compile()(X, W, V), mlp(X, W, V))


def test_a_program_without_shardings_is_one_of_one_device() -> None:
    traced = jm.from_mlir(written(lambda x: jnp.sort(jnp.tanh(x)), (X,), True))
    assert "mesh_shard" not in traced.as_text()
    assert_same(traced.lower().compile()(X), np.sort(np.tanh(X)))


def test_constants_of_arith_are_a_program() -> None:
    traced = jm.from_mlir("""
      func.func public @main() -> tensor<2xf32> {
        %0 = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    """)
    assert "ttir.constant" in traced.as_text()
    assert_same(traced.lower().compile()(), np.array([1, 2], np.float32))


def test_presharded_ends_have_local_types() -> None:
    status = "ttcore.shard_status = #ttcore.shard_status<presharded>"
    sharding = 'sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>'
    traced = jm.from_mlir(f"""
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func public @main(
        %a: tensor<16x8xf32> {{{sharding}, {status}}}
      ) -> (tensor<16x8xf32> {{{sharding}, {status}}}) {{
        %0 = stablehlo.add %a, %a : tensor<16x8xf32>
        return %0 : tensor<16x8xf32>
      }}
    """)
    assert traced.in_avals[0].shape == traced.out_avals[0].shape == (8, 2)
    assert "mesh_shard" not in traced.as_text()


def test_a_given_mesh_has_the_shape_of_the_text() -> None:
    text = written(mlp, (X, W, V), True, in_shardings=(on("y"), on(None, "x"), on("x")))
    with pytest.raises(errors.MeshMismatchError, match=r"sdy\.mesh is 2x4, but the given mesh is 4x2"):
        jm.from_mlir(text, mesh=AbstractMesh((4, 2), ("a", "b")))


# --- forms that JAX does not write -----------------------------------------------------------------------------------


def read(body: str, arguments: str, results: str, returned: str) -> jm.Traced:
    return jm.from_mlir(f"func.func public @main({arguments}) -> ({results}) {{\n{body}\nreturn {returned}\n}}")


KIND = "tensor<8x16xf32>"


def test_a_descending_sort_keeps_the_order_of_equal_keys() -> None:
    keys = np.float32([3, 1, 3, 2, 1, 3, 0, 2])
    pair = "tensor<8xf32>, tensor<8xi32>"
    traced = read(
        f"""%0:2 = "stablehlo.sort"(%a, %b) <{{dimension = 0 : i64, is_stable = true}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
          %c = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }}) : ({pair}) -> ({pair})""",
        "%a: tensor<8xf32>, %b: tensor<8xi32>",
        pair,
        f"%0#0, %0#1 : {pair}",
    )
    values, order = traced.lower().compile()(keys, np.arange(8, dtype=np.int32))
    want = np.argsort(-keys, stable=True)
    np.testing.assert_array_equal(order, want)
    np.testing.assert_array_equal(values, keys[want])


def test_a_comparison_of_swapped_operands_descends() -> None:
    kind = "tensor<8xf32>"
    traced = read(
        f"""%0 = "stablehlo.sort"(%a) <{{dimension = 0 : i64}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %c = stablehlo.compare LT, %y, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }}) : ({kind}) -> {kind}""",
        f"%a: {kind}",
        kind,
        f"%0 : {kind}",
    )
    np.testing.assert_array_equal(traced.lower().compile()(X[0, :8]), np.sort(X[0, :8])[::-1])


def test_batch_norms() -> None:
    per, options = "tensor<16xf32>", "epsilon = 0.01 : f32, feature_index = 1 : i64"
    scale, offset, given = SQUARE[0], SQUARE[1], X[::-1] * 2
    traced = read(
        f"""%0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) <{{{options}}}>
          : ({KIND}, {per}, {per}) -> ({KIND}, {per}, {per})
        %1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %0#1, %0#2) <{{{options}}}>
          : ({KIND}, {per}, {per}, {per}, {per}) -> {KIND}
        %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g) <{{{options}}}>
          : ({KIND}, {per}, {per}, {per}, {KIND}) -> ({KIND}, {per}, {per})""",
        f"%x: {KIND}, %s: {per}, %o: {per}, %g: {KIND}",
        f"{KIND}, {KIND}, {KIND}, {per}, {per}",
        f"%0#0, %1, %2#0, %2#1, %2#2 : {KIND}, {KIND}, {KIND}, {per}, {per}",
    )

    def norm(x: Any, s: Any, o: Any) -> Any:
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.01) * s + o

    want, pull = jax.vjp(norm, X, scale, offset)
    assert_same(traced.lower().compile()(X, scale, offset, given), (want, want, *pull(given)))


def test_tuples_composites_and_sizes() -> None:
    traced = jm.from_mlir(f"""
      func.func public @main(%a: {KIND}) -> ({KIND}, tensor<i32>) {{
        %t = stablehlo.tuple %a, %a : tuple<{KIND}, {KIND}>
        %0 = stablehlo.get_tuple_element %t[1] : (tuple<{KIND}, {KIND}>) -> {KIND}
        %1 = stablehlo.composite "my.twice" %0 {{decomposition = @twice}} : ({KIND}) -> {KIND}
        %2 = stablehlo.get_dimension_size %a, dim = 1 : ({KIND}) -> tensor<i32>
        return %1, %2 : {KIND}, tensor<i32>
      }}
      func.func private @twice(%a: {KIND}) -> {KIND} {{
        %0 = stablehlo.add %a, %a : {KIND}
        return %0 : {KIND}
      }}
    """)
    assert_same(traced.lower().compile()(X), (X * 2, 16))


def test_custom_calls_that_stand_for_an_op_of_ttir() -> None:
    kinds = "tensor<8x3xf32>, tensor<8x3xi32>"
    traced = read(
        f"""%0:2 = stablehlo.custom_call @mhlo.topk(%a) {{mhlo.attributes = {{k = 3 : i64, largest = true}}}}
          : ({KIND}) -> ({kinds})""",
        f"%a: {KIND}",
        kinds,
        f"%0#0, %0#1 : {kinds}",
    )
    assert "ttir.topk" in traced.as_text()
    assert_same(traced.lower().compile()(X), (np.sort(X)[:, :-4:-1], np.argsort(-X)[:, :3]))


def test_shardys_own_collectives() -> None:
    traced = jm.from_mlir("""
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func public @main(
        %a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}
      ) -> tensor<8x16xf32> {
        %0 = sdy.all_slice [{}, {"x"}] %a out_sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>
        %1 = sdy.all_gather [{"y"}, {}] %0 out_sharding=<@mesh, [{}, {"x"}]> : tensor<8x16xf32>
        %2 = sdy.reduce_scatter [{"y"}, {}] %1 out_sharding=<@mesh, [{"y"}, {"x"}]> : tensor<8x16xf32>
        return %2 : tensor<8x16xf32>
      }
    """)
    # The two copies along y are added up.
    assert_same(traced.lower().compile()(X), 2 * X)
    assert [d.kind for d in traced.decisions].count("reduce_scatter") == 1


def summed(product: str, operand: str, sharding: str = "{}, {}") -> jm.Traced:
    return jm.from_mlir(f"""
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func public @main(
        %a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{sharding}]>}}
      ) -> tensor<8x8xf32> {{
        {product}
        %1 = sdy.all_reduce {{"x"}} {operand} out_sharding=<@mesh, [{{}}, {{}}]> : tensor<8x8xf32>
        return %1 : tensor<8x8xf32>
      }}
    """)


SQUARE_OF_8 = np.arange(64, dtype=np.float32).reshape(8, 8)
PRODUCT = """%0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1]
  {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
  : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"""


def test_an_all_reduce_of_the_text_sums_what_a_product_left_once() -> None:
    traced = summed(PRODUCT, "%0", '{}, {"x"}')
    assert traced.as_text().count("ttir.all_reduce") == 1
    assert_same(traced.lower().compile()(SQUARE_OF_8), SQUARE_OF_8 @ SQUARE_OF_8.T)


def test_an_all_reduce_of_the_text_sums_copies_and_warns() -> None:
    with pytest.warns(errors.RedundantReductionWarning, match="over x of a value that does not vary"):
        traced = summed("", "%a")
    assert traced.as_text().count("ttir.all_reduce") == 1
    assert_same(traced.lower().compile()(SQUARE_OF_8), 4 * SQUARE_OF_8)


def test_an_all_reduce_in_a_manual_region_sums_its_shards() -> None:
    traced = jm.from_mlir("""
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func public @main(%a: tensor<8x8xf32>) -> tensor<2x8xf32> {
        %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {}]>]
            manual_axes={"x"} (%b: tensor<2x8xf32>) {
          %1 = sdy.all_reduce {"x"} %b out_sharding=<@mesh, [{}, {}]> : tensor<2x8xf32>
          sdy.return %1 : tensor<2x8xf32>
        } : (tensor<8x8xf32>) -> tensor<2x8xf32>
        return %0 : tensor<2x8xf32>
      }
    """)
    assert traced.assumptions == ()
    assert_same(traced.lower().compile()(SQUARE_OF_8), SQUARE_OF_8.reshape(4, 2, 8).sum(0))


def asking(target: str, axis: str) -> str:
    sharding = f'xla.sdy.sharding = "#sdy.sharding_per_value<[<@mesh, [{{\\22{axis}\\22}}, {{}}]>]>"'
    return f"""
      module attributes {{mhlo.frontend_attributes = {{
        xla.sdy.meshes = "{{mesh = #sdy.mesh<[\\22y\\22=2, \\22x\\22=4]>}}"
      }}}} {{
        func.func public @main(%a: {KIND}) -> {KIND} {{
          %0 = stablehlo.add %a, %a : {KIND}
          %1 = stablehlo.custom_call @{target}(%0) {{mhlo.frontend_attributes = {{{sharding}}}}} : ({KIND}) -> {KIND}
          return %1 : {KIND}
        }}
      }}
    """


@pytest.mark.parametrize(
    ("target", "axis"), [("tt.sharding_constraint", "x"), ("tt.sharding_constraint", "mesh_idx_1"), ("Sharding", "x")]
)
def test_a_call_that_asks_for_a_sharding(target: str, axis: str) -> None:
    traced = jm.from_mlir(asking(target, axis))
    assert "P('x', None)" in [d.text for d in traced.decisions if d.op == "result 0"]
    assert_same(traced.lower().compile()(X), 2 * X)


def test_the_composite_of_an_all_slice_moves_nothing() -> None:
    traced = jm.from_mlir("""
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func public @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
        %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>]
            manual_axes={"y", "x"} (%b: tensor<8x16xf32>) {
          %1 = stablehlo.composite "sdy.all_slice" %b {
            composite_attributes = {out_sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, decomposition = @part
          } : (tensor<8x16xf32>) -> tensor<2x8xf32>
          sdy.return %1 : tensor<2x8xf32>
        } : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32>
      }
      func.func private @part(%a: tensor<8x16xf32>) -> tensor<2x8xf32> {
        %0 = stablehlo.slice %a [0:2, 0:8] : (tensor<8x16xf32>) -> tensor<2x8xf32>
        return %0 : tensor<2x8xf32>
      }
    """)
    assert traced.as_text().count("ttir.mesh_partition") == 2
    assert_same(traced.lower().compile()(X), X)


@pytest.mark.parametrize("axes", [("data-parallel", "x y"), ("a, b", "}]>")])
def test_a_region_over_axes_of_any_name(axes: tuple[str, str]) -> None:
    mesh = jm.make_mesh((2, 4), axes)

    def region(x: Any) -> Any:
        return lax.psum(jnp.sin(x), axes[1])

    fun = jm.jit(jax.shard_map(region, mesh=mesh, in_specs=P(*axes), out_specs=P(axes[0])), mesh=mesh)
    read = jm.from_mlir(fun.lower(X).as_text("stablehlo"))
    assert_same(read.lower().compile()(X), fun(X))


# --- ops that Shardy does not know -----------------------------------------------------------------------------------

_ATTENTION = 'mhlo.frontend_attributes = {is_causal = "False"}'
_GIVEN = "tt.composite_attributes"
RULES = {
    "attention, heads of keys split": (
        f"stablehlo.custom_call @tt.scaled_dot_product_attention(ARGS) {{{_ATTENTION}}}",
        {"2x4x8x4xf32": '{}, {"y"}, {}, {}', "2x2x8x4xf32": "", "2x2x8x4xf32 ": ""},
        "2x4x8x4xf32",
        0,
    ),
    "attention with a mask, rows split": (
        f"stablehlo.custom_call @tt.scaled_dot_product_attention(ARGS) {{{_ATTENTION}}}",
        {
            "2x4x8x4xf32": '{}, {}, {"x"}, {}',
            "2x4x8x4xf32 ": "",
            "2x4x8x4xf32  ": "",
            "2x1x8x8xf32": '{"y"}, {}, {}, {}',
        },
        "2x4x8x4xf32",
        1,
    ),
    "gather, index split": (
        f"stablehlo.custom_call @tenstorrent.gather_dim(ARGS) {{{_GIVEN} = {{dim = 1 : i64}}}}",
        {"8x4xf32": '{"y"}, {}', "8x4xi32": '{}, {"x"}'},
        "8x4xf32",
        0,
    ),
    "gather of fewer rows": (
        f"stablehlo.custom_call @tenstorrent.gather_dim(ARGS) {{{_GIVEN} = {{dim = 1 : i64}}}}",
        {"8x4xf32": '{"y"}, {}', "4x4xi32": ""},
        "4x4xf32",
        1,
    ),
    "rms norm": (
        "stablehlo.custom_call @tenstorrent.rms_norm(ARGS) "
        f"{{{_GIVEN} = {{epsilon = 1.0e-5 : f32, normalized_shape = dense<8> : tensor<1xi64>}}}}",
        {"4x8xf32": '{"y"}, {"x"}', "8xf32": '{"x"}'},
        "4x8xf32",
        2,
    ),
    "batch norm of split features": (
        '"stablehlo.batch_norm_training"(ARGS) <{epsilon = 1.0e-5 : f32, feature_index = 1 : i64}>',
        {"4x8xf32": "", "8xf32": '{"x"}', "8xf32 ": ""},
        "4x8xf32, 8xf32, 8xf32",
        0,
    ),
    "batch norm of split rows": (
        '"stablehlo.batch_norm_training"(ARGS) <{epsilon = 1.0e-5 : f32, feature_index = 1 : i64}>',
        {"4x8xf32": '{"y"}, {"x"}', "8xf32": "", "8xf32 ": ""},
        "4x8xf32, 8xf32, 8xf32",
        1,
    ),
    "batch norm by known means": (
        '"stablehlo.batch_norm_inference"(ARGS) <{epsilon = 1.0e-5 : f32, feature_index = 1 : i64}>',
        {"4x8xf32": '{"y"}, {"x"}', "8xf32": "", "8xf32 ": "", "8xf32  ": "", "8xf32   ": ""},
        "4x8xf32",
        0,
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_ops_without_a_rule_of_shardys_are_computed_on_shards(name: str) -> None:
    op, arguments, results, gathers = RULES[name]

    def text(shardings: bool) -> str:
        kinds = [f"tensor<{k.strip()}>" for k in arguments]
        asked = [
            f" {{sdy.sharding = #sdy.sharding<@mesh, [{s}]>}}" if s and shardings else "" for s in arguments.values()
        ]
        head = ", ".join(f"%a{i}: {k}{s}" for i, (k, s) in enumerate(zip(kinds, asked, strict=True)))
        given = ", ".join(f"%a{i}" for i in range(len(kinds)))
        made = ", ".join(f"tensor<{k}>" for k in results.split(", "))
        count = results.count(",") + 1
        values = "%0" if count == 1 else ", ".join(f"%0#{i}" for i in range(count))
        return f"""
          sdy.mesh @mesh = <["y"=2, "x"=4]>
          func.func public @main({head}) -> ({made}) {{
            %0{"" if count == 1 else f":{count}"} = {op.replace("ARGS", given)} : ({", ".join(kinds)}) -> ({made})
            return {values} : {made}
          }}
        """

    def value(kind: str, seed: int) -> Any:
        shape = tuple(map(int, kind.split("x")[:-1]))
        rng = np.random.default_rng(seed)
        return rng.integers(0, 4, shape).astype(np.int32) if "i32" in kind else rng.random(shape).astype(np.float32)

    args = [value(k.strip(), i) for i, k in enumerate(arguments)]
    split = jm.from_mlir(text(True))
    assert split.as_text().count("ttir.all_gather") == gathers
    assert_same(split.lower().compile()(*args), jm.from_mlir(text(False)).lower().compile()(*args))


# --- errors ----------------------------------------------------------------------------------------------------------


def fails(text: str, kind: type[Exception], *words: str) -> None:
    with pytest.raises(kind) as caught:
        jm.from_mlir(text)
    for word in words:
        assert word in str(caught.value)


def program(body: str, argument: str = "", head: str = 'sdy.mesh @mesh = <["y"=2, "x"=4]>') -> str:
    return f"""{head}
func.func public @main(%a: {KIND} {argument}) -> {KIND} {{
  {body}
  return %r : {KIND}
}}"""


def test_an_unknown_op_is_named_with_its_line() -> None:
    fails(program(f'%r = "stablehlo.frobnicate"(%a) : ({KIND}) -> {KIND}'), errors.ParseError, "line 3", "frobnicate")
    body = f'%0 = stablehlo.add %a, %a : {KIND}\n%r = "foo.bar"(%0) : ({KIND}) -> {KIND}'
    fails(program(body), errors.MissingRuleError, "line 4", "foo.bar")
    body = f"%r = stablehlo.custom_call @my.kernel(%a) : ({KIND}) -> {KIND}"
    fails(program(body), errors.MissingRuleError, "line 3", "@my.kernel", "custom_calls.py")


@pytest.mark.usefixtures("as_for_users")
def test_what_ends_shardys_process_is_an_error() -> None:
    body = f"%r = sdy.data_flow_edge %a sharding=<@mesh, [{{}}, {{}}]> : {KIND}"
    fails(program(body), errors.UnsupportedError, "line 2", "@main", "would end the process")


def test_a_call_that_asks_for_an_unknown_axis_is_an_error() -> None:
    fails(asking("tt.sharding_constraint", "mesh_idx_2"), errors.UnsupportedError, "mesh_idx_2", "unknown axis")


def test_what_shardy_refuses_is_an_error() -> None:
    kind = "tensor<?x8xf32>"
    text = f"func.func @main(%a: {kind}) -> {kind} {{\n%0 = stablehlo.add %a, %a : {kind}\nreturn %0 : {kind}\n}}"
    fails(text, errors.UnsupportedError, "line 1", "static shape")


@pytest.mark.parametrize(
    ("meshes", "sharding", "word"),
    [
        ("{mesh = nonsense", "#sdy.sharding<@mesh, [{}, {}]>", "xla.sdy.meshes"),
        ("{mesh = #sdy.mesh<[\\22x\\22=2]>}", "nonsense", "xla.sdy.sharding"),
        ("{}", "#sdy.sharding<@mesh, [{\\22x\\22}, {}]>", "unknown mesh"),
    ],
)
def test_strings_that_hold_no_attribute(meshes: str, sharding: str, word: str) -> None:
    argument = f'{{mhlo.frontend_attributes = {{xla.sdy.sharding = "{sharding}"}}}}'
    inner = program(f"%r = stablehlo.add %a, %a : {KIND}", argument, "")
    text = f'module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{meshes}"}}}} {{{inner}}}'
    fails(text, errors.JaxmeshError, "line", word)


def test_strings_that_hold_attributes_are_read() -> None:
    argument = '{mhlo.frontend_attributes = {xla.sdy.sharding = "#sdy.sharding<@mesh, [{}, {\\22x\\22}]>"}}'
    inner = program(f"%r = stablehlo.add %a, %a : {KIND}", argument, "")
    meshes = "{mesh = #sdy.mesh<[\\22y\\22=2, \\22x\\22=4]>}"
    text = f'module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{meshes}"}}}} {{{inner}}}'
    traced = jm.from_mlir(text)
    assert dict(traced.mesh.shape) == {"y": 2, "x": 4}
    assert "tensor<8x4xf32>" in traced.as_text()
    assert_same(traced.lower().compile()(X), X + X)
