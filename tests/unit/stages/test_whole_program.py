"""Programs with global shapes, and changes of single operations, against JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.repair import LineChange
from jaxmesh.jaxprs import walk
from jaxmesh.stages.whole_program import WholeProgram, mixed_dims

MESH = jm.make_mesh((2, 4), ("y", "x"))
X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.mark.parametrize(
    ("fun", "dims"),
    [
        (lambda x: jnp.cumsum(x, 1), {1}),
        (lambda x: x.sum(0), {0}),
        (lambda x: jax.lax.pad(x, 0.0, ((0, 0, 0), (-1, 1, 0))), {1}),
        (lambda x: x[:, 2:9], {1}),
        (lambda x: jax.lax.dynamic_update_slice(x, x[:3], (2, 0)), {0}),
        (lambda x: jnp.concatenate([x, x]), {0}),
        (lambda x: jax.lax.sort(x, dimension=1), {1}),
        (lambda x: x @ x.T, {0, 1}),
        (lambda x: jnp.tanh(x), set[int]()),
        (lambda x: jnp.broadcast_to(x[0], (8, 16)), set[int]()),
    ],
)
def test_the_dims_along_which_elements_meet(fun: Any, dims: set[int]) -> None:
    eqn = jax.make_jaxpr(fun)(X).jaxpr.eqns[-1]
    inner = eqn.params.get("jaxpr")
    is_call = inner is not None and eqn.primitive.name in ("jit", "pjit")
    assert mixed_dims(inner.jaxpr.eqns[-1] if is_call else eqn) == dims


def programs(fun: Any) -> list[tuple[WholeProgram, Any]]:
    """Returns a program of a function, and that of its text, with what lowers them."""
    lowered = jm.jit(fun, mesh=MESH, in_shardings=P("y", "x")).lower(X)
    written, _ = lowered.global_program()
    assert written is not None
    read = jm.from_mlir(written.text(), MESH).lower()
    made = [(stage.global_program()[0], stage) for stage in (lowered, read)]
    return [(p, stage) for w, stage in made if w is not None and (p := w.opened()) is not None]


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, c: jnp.flip(c, 0) * 2 + i, jnp.tanh(x))


@jax.custom_jvp
def own(x: Any) -> Any:
    return jnp.flip(x, 0) * 2


@own.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return own(primals[0]), 3 * tangents[0]


@pytest.mark.parametrize("change", [LineChange(), LineChange(stepwise=True), LineChange(whole=True)])
@pytest.mark.parametrize("fun", [looped, own])
def test_a_changed_program_computes_the_same(fun: Any, change: LineChange) -> None:
    found = programs(fun)
    assert len(found) == 2
    for program, lowered in found:
        line = next(at for at in lines_of(program) if "rev" in program.primitives(at))
        made = program.changed(MESH.abstract_mesh, {line: change})
        assert any(at == line and what.startswith("rev of values that are whole along dim") for at, what in made.done)
        assert made.text().count("sdy.sharding_constraint") >= 2
        function = made.function(lowered.boundary, lowered.out_tree)
        for a, b in zip(jax.tree.leaves(function(X)), jax.tree.leaves(fun(X)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        assert not program.changed(MESH.abstract_mesh, {"elsewhere.py:1:1": change}).done


def lines_of(program: WholeProgram) -> set[str]:
    return {program.line_of(e, "").partition(" (")[0] for e in walk.all_eqns(program.jaxpr)}


def test_a_users_derivative_stays() -> None:
    program, lowered = programs(own)[0]
    line = next(at for at in lines_of(program) if "rev" in program.primitives(at))
    function = program.changed(MESH.abstract_mesh, {line: LineChange()}).function(lowered.boundary, lowered.out_tree)
    np.testing.assert_array_equal(jax.jvp(function, (X,), (X,))[1], 3 * X)


def test_programs_that_no_jaxpr_of_full_values_has() -> None:
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=MESH, in_specs=P("y", "x"), out_specs=P("y"))
    written, _ = jm.jit(lambda x: mapped(x) * 2, mesh=MESH, in_shardings=P("y", "x")).lower(X).global_program()
    assert written is not None
    read, _ = jm.from_mlir(written.text(), MESH).lower().global_program()
    assert read is not None
    assert read.opened() is None


def test_constraints_of_a_text_stay() -> None:
    def fun(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P(None, "x"))) + 1

    for program, _ in programs(fun):
        assert '[{}, {"x"}]' in program.text()


def test_texts_with_shardings_of_gspmd_are_opened() -> None:
    text = """
    module @m attributes {mhlo.num_partitions = 8 : i32} {
      func.func public @main(%a: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"})
          -> (tensor<8x16xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}) {
        %0 = stablehlo.reverse %a, dims = [0] : tensor<8x16xf32> loc("a.py":3:4)
        return %0 : tensor<8x16xf32>
      }
    }"""
    written, _ = jm.from_mlir(text, MESH).lower().global_program()
    assert written is not None
    program = written.opened()
    assert program is not None
    assert [s and s.spec for s in (*program.in_shardings, *program.out_shardings)] == [P("y"), P("y", "x")]
    made = program.changed(MESH.abstract_mesh, {"a.py:3:4": LineChange()})
    assert list(made.done) == [("a.py:3:4", "rev of values that are whole along dim 0")]


def test_explicit_axes_take_no_constraints() -> None:
    mesh = AbstractMesh((2, 4), ("y", "x"), axis_types=(AxisType.Explicit,) * 2)
    program, _ = programs(own)[0]
    assert program.changed(mesh, {line: LineChange() for line in lines_of(program)}) is program
