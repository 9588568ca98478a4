"""The form of flat TTNN programs: layouts, deallocation, work on the host, and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.cli import main
from jaxmesh.dialects.program import Op, Port, Program, Type
from jaxmesh.errors import MissingRuleError, ResidencyError, UnsupportedError, VerifyError
from jaxmesh.passes.verify_program import verify_program
from tests.generators.drafts import freed, lowered, to_ttnn
from tests.generators.flat_programs import flat_of
from tests.generators.oracles import calls_made


def names_of(program: Program) -> list[str]:
    return [op.name.removeprefix("ttnn.") for op in program.ops if op.name != "ttnn.deallocate"]


def flat(function: Any, *args: Any, sizes: Sequence[int] = (2, 4)) -> Program:
    mesh = jm.make_mesh(tuple(sizes), ("y", "x"))
    return lowered(flat_of(jm.jit(function, mesh=mesh).trace(*args).lower(), "ttnn"))


def test_form_of_a_sharded_program() -> None:
    x = np.ones((4, 8), np.float32)
    made = flat(lambda x: jm.shard_to_full(jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))), P("y", "x")), x)
    assert names_of(made) == [
        "get_device", "distribute_tensor", "to_device", "to_layout", "exp", "to_layout", "from_device",
        "aggregate_tensor",
    ]  # fmt: skip
    assert made.ops[0].attributes == {"mesh_shape": (2, 4)}
    assert sum(op.name == "ttnn.deallocate" for op in made.ops) == 7


def test_views_of_one_buffer_are_deallocated_once_by_force() -> None:
    x = np.ones((64, 128), np.float32)

    def reduced(x: Any) -> Any:
        y = jax.lax.psum(jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))), "x")
        tiles = y.reshape(1, 32, 32)  # A view: the tiles stay whole.
        moved = y.reshape(16, 64)  # None: elements move.
        return jm.shard_to_full(tiles[0] * 2, P("y")), jm.shard_to_full(moved, P("y"))

    seen = freed(flat(reduced, x))
    assert ("reshape", True) in seen
    assert ("argument", False) in seen
    assert sum(force for _, force in seen) >= 2


def test_a_view_that_is_returned_keeps_its_buffer() -> None:
    x = np.ones((64, 128), np.float32)
    made = flat(lambda x: jax.numpy.exp(jm.full_to_shard(x, P("y", "x"))).reshape(1, 32, 32), x)
    assert names_of(made)[-2:] == ["exp", "reshape"]
    assert ("exp", True) not in freed(made)
    assert ("exp", False) not in freed(made)


def test_a_shard_that_is_only_returned_stays_on_the_host() -> None:
    made = flat(lambda x: jm.full_to_shard(x, P("y")), np.ones((4, 8), np.float32))
    assert names_of(made) == ["get_device", "distribute_tensor"]
    assert made.types[made.results[0].value] == Type((2, 8), np.dtype(np.float32), host=True)


def test_full_tensors_are_computed_on_the_devices_and_reshaped_on_the_host() -> None:
    made = flat(lambda x: (x.reshape(8, 4), x * x), np.ones((4, 8), np.float32))
    names = names_of(made)
    assert names.count("reshape") == 1
    assert names.count("distribute_tensor") == 1
    assert names.count("aggregate_tensor") == 1
    (reshape,) = (op for op in made.ops if op.name == "ttnn.reshape")
    assert made.types[reshape.results[0]].host


def test_a_constant_is_made_where_it_is_needed() -> None:
    table = np.arange(8, dtype=np.float32)

    def f(x: Any) -> Any:
        return jm.shard_to_full(jm.full_to_shard(table, P("x")) + jm.full_to_shard(x, P("x")), P("x")), x + table

    made = flat(f, table)
    places = [made.types[op.results[0]].host for op in made.ops if op.name == "ttnn.constant"]
    assert sorted(places) == [False, True]
    for op in made.ops:
        if op.name == "ttnn.constant":
            assert len(op.operands) == (0 if made.types[op.results[0]].host else 1)


def test_what_works_in_place_gets_a_copy_of_what_is_not_its_own() -> None:
    kinds = [Type((1, 2, 4, 8), np.dtype(np.float32)), Type((1, 2, 1, 8), np.dtype(np.float32))]
    kinds.append(Type((1,), np.dtype(np.int32)))
    program = Program("f", {"y": 1, "x": 2})
    cache, new, at = (program.new(k) for k in kinds)
    program.arguments = [Port(v, True) for v in (cache, new, at)]
    first, second = program.new(kinds[0]), program.new(kinds[0])
    program.ops = [
        Op("ttir.update_cache", (cache, new, at), (first,), {"batch_offset": 0}),
        Op("ttir.fill_cache", (first, new), (second,), {"batch_offset": 0}),
    ]
    program.results = [Port(second, True)]
    assert names_of(lowered(program)) == ["assign", "update_cache", "fill_cache"]
    program.results = [Port(first, True), Port(second, True)]
    assert names_of(lowered(program)) == ["assign", "update_cache", "assign", "fill_cache"]


@pytest.mark.parametrize(
    ("again", "want"), [(False, ["reshape", "fill_cache"]), (True, ["reshape", "assign", "fill_cache"])]
)
def test_what_works_in_place_leaves_the_memory_of_a_view_alone(again: bool, want: list[str]) -> None:
    kinds = [Type((2, 4, 8), np.dtype(np.float32)), Type((1, 2, 1, 8), np.dtype(np.float32))]
    program = Program("f", {"y": 1, "x": 2})
    cache, new = (program.new(k) for k in kinds)
    program.arguments = [Port(v, True) for v in (cache, new)]
    own, view, made = (program.new(replace(kinds[0], shape=s)) for s in ((2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    program.ops = [
        Op("ttir.exp", (cache,), (own,), {}),
        Op("ttir.reshape", (own,), (view,), {"shape": (1, 2, 4, 8)}),
        Op("ttir.fill_cache", (view, new), (made,), {"batch_offset": 0}),
    ]
    program.results = [Port(made, True), *([Port(own, True)] if again else [])]
    assert names_of(lowered(program)) == ["exp", *want]
    # A view of an argument has the caller's memory.
    program.ops[0] = Op("ttir.reshape", (cache,), (own,), {"shape": (2, 4, 8)})
    assert names_of(lowered(program))[-3:] == ["reshape", "assign", "fill_cache"]


def test_arguments_and_results_may_be_the_same() -> None:
    x = np.ones((4, 8), np.float32)
    made = flat(lambda x, y: (x, x, y), x, x)
    assert not made.ops
    assert [r.value for r in made.results] == [0, 0, 1]


def test_many_ops_take_linear_time() -> None:
    def program(count: int) -> Program:
        made = Program("f", {"x": 2})
        value = made.new(Type((2,), np.dtype(np.float32)))
        made.arguments = [Port(value, True)]
        for _ in range(count):
            result = made.new(Type((2,), np.dtype(np.float32)))
            made.ops.append(Op("ttir.exp", (value,), (result,)))
            value = result
        made.results = [Port(value, True)]
        return made

    def calls(count: int) -> int:
        given = program(count)
        assert len(to_ttnn(given).ops) == 2 * count
        return calls_made(lambda: to_ttnn(given))

    assert calls(4_000) < 8 * 1.1 * calls(500)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_op_without_a_row_is_named() -> None:
    program = Program("f", {"x": 2}, [Type((), np.dtype(np.float32))] * 2, [Port(0, False)])
    program.ops = [Op("ttir.unheard_of", (0,), (1,), {}, "model.py:7 (f)")]
    with pytest.raises(MissingRuleError, match=r"ttir.unheard_of \(model.py:7 \(f\)\)"):
        to_ttnn(program)


def test_shards_are_no_full_tensor() -> None:
    program = Program("f", {"x": 2}, [Type((4,), np.dtype(np.float32))], [Port(0, True)])
    program.results = [Port(0, False)]
    with pytest.raises(ResidencyError, match="shard_to_full"):
        to_ttnn(program)


def test_an_op_does_not_bring_its_operands_to_the_devices() -> None:
    program = Program("f", {"x": 2}, [Type((4,), np.dtype(np.float32))] * 2, [Port(0, False)])
    program.ops = [Op("ttir.exp", (0,), (1,), {}, "model.py:7 (f)")]
    program.results = [Port(1, True)]
    with pytest.raises(ResidencyError, match=r"float32\[4\] of model.py:7 \(f\) on the devices.*distribute_tensor"):
        to_ttnn(program)


def broken(change: Any) -> Program:
    made = flat(lambda x: x + 1.0, np.ones((4, 8), np.float32))
    change(made)
    return made


def swap(name: str, /, **changes: Any) -> Any:
    def change(made: Program) -> None:
        at = next(i for i, op in enumerate(made.ops) if op.name == name)
        made.ops[at] = replace(made.ops[at], **changes)

    return change


def on_host(name: str) -> Any:
    def change(made: Program) -> None:
        (result,) = next(op.results for op in made.ops if op.name == name)
        made.types[result] = replace(made.types[result], host=True)

    return change


def drop(name: str) -> Any:
    return lambda made: made.ops.remove(next(op for op in made.ops if op.name == name))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (swap("ttnn.add", name="ttir.add"), VerifyError, "ttir.add is left"),
        (swap("ttnn.add", name="ttnn.plus"), VerifyError, "ttnn.plus is not an op"),
        (swap("ttnn.add", attributes={"dim": 1}), VerifyError, "no attribute dim"),
        (on_host("ttnn.add"), ResidencyError, r"gives .*devices, tiles\), got .*host, tiles"),
        (swap("ttnn.full", attributes={"shape": ()}), VerifyError, "needs the attribute fill_value"),
        (swap("ttnn.full", operands=()), VerifyError, "the device is its last operand"),
        (swap("ttnn.get_device", attributes={"mesh_shape": (4, 2)}), VerifyError, "the mesh \\(2, 4\\)"),
        (swap("ttnn.from_device", name="ttnn.to_device"), ResidencyError, "makes"),
        (drop("ttnn.deallocate"), VerifyError, "never deallocated"),
        (
            swap("ttnn.deallocate", attributes={"force": True}),
            VerifyError,
            "force = True, but other values do not share",
        ),
        (drop("ttnn.to_device"), VerifyError, "no earlier op defines"),
        (lambda made: made.ops.append(made.ops[-1]), VerifyError, "after it was deallocated"),
        (lambda made: made.results.append(Port(0, False)), VerifyError, "not there at the end"),
    ],
)
def test_the_verifier_refuses(change: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        verify_program(broken(change))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_a_pool_has_no_more_padding_than_half_of_a_window(name: str) -> None:
    own = {"count_include_pad": True} if name == "avg_pool2d" else {}
    for edge in (1, 2):
        kinds = [Type(s, np.dtype(jax.numpy.bfloat16)) for s in ((1, 6, 6, 4), (1, 4 + 2 * edge, 4 + 2 * edge, 4))]
        program = Program("f", {"y": 1, "x": 2}, kinds, [Port(0, True)])
        window = {"kernel": 3, "stride": 1, "dilation": 1, "padding": edge, "ceil_mode": False, **own}
        program.ops = [Op(f"ttir.{name}", (0,), (1,), window)]
        program.results = [Port(1, True)]
        assert (name in names_of(to_ttnn(program))) is (edge == 1)


def rotation(dialect: str, rows: int, result: int) -> jm.Lowered:
    x, row, out = (f"tensor<1x{n}x64xf32>" for n in (f"2x{rows}", f"1x{rows}", f"2x{result}"))
    text = f"""func.func @main(%x: {x}, %cos: {row}, %sin: {row}) -> {out} {{
      %0 = "{dialect}.rotary_embedding"(%x, %cos, %sin) : ({x}, {row}, {row}) -> {out}
      return %0 : {out}
    }}"""
    return jm.from_mlir(text, mesh=jm.make_mesh((1, 1))).lower()


@pytest.mark.filterwarnings("ignore::jaxmesh.DeviationWarning")
@pytest.mark.parametrize(
    ("dialect", "rows", "result"),
    [("ttir", 5, 5), ("ttir", 32, 32), ("ttnn", 5, 32), ("ttnn", 40, 64)],
)
def test_rotations_in_texts_run(dialect: str, rows: int, result: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(rows)
    x, cos, sin = (rng.standard_normal((1, n, rows, 64), dtype=np.float32) for n in (2, 1, 1))
    made = rotation(dialect, rows, result)
    want = x * cos + np.concatenate([-x[..., 32:], x[..., :32]], -1) * sin
    got = np.asarray(made.compile()(x, cos, sin))
    assert got.shape == (1, 2, result, 64)
    np.testing.assert_allclose(got[:, :, :rows], want, rtol=1e-5, atol=1e-5)
    assert ('"ttnn.rotary_embedding"' in made.as_text("ttnn")) == (dialect == "ttnn")
    made.export(tmp_path, x, cos, sin)
    assert main.main(["run", str(tmp_path), "--check"]) == 0


def test_a_rotation_without_the_rows_of_its_last_tile_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="rows of the result fill its last tile there; declare that many"):
        rotation("ttnn", 5, 5).as_text("python")
    with pytest.raises(VerifyError, match=r"\[1, 2, 5, 64\].*\[1, 2, 64, 64\]"):
        rotation("ttnn", 5, 64)
