"""An operation that is read from a text is the same operation in the texts that are written of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import Op, Port, Program
from jaxmesh.dialects.ttir import OPS
from jaxmesh.emit.mlir.printer import mlir_text
from jaxmesh.errors import UnsupportedError, VerifyError
from jaxmesh.passes.ttir_to_ttnn.driver import PATTERNS
from jaxmesh.passes.verify_program import verify_program
from tests.generators.drafts import replicated, to_ttnn
from tests.generators.flat_programs import in_two_dims, run_flat
from tests.generators.mlir_programs import add, program, tensor
from tests.generators.mlir_texts import on_devices, program as module
from tests.generators.oracles import count_of, only_with_every, some
from tests.generators.programs.execution_paths import Stages
from tests.generators.programs.program import draw_program
from tests.generators.programs.values import Seeded
from tests.generators.suite.all_programs import BY_NAME, PROGRAMS, Entry
from tests.generators.ttir_cases import CASES as TTIR_CASES
from tests.generators.ttir_cases.case import assert_close
from tests.generators.ttir_cases.program import cases_program

CASES: dict[str, list[Any]] = {}
for _case in (c for c in TTIR_CASES if c.is_printed):
    # TTIR declares some dims without sign.
    if _case.attributes.get("dimension") != -1:
        CASES.setdefault(_case.row, []).append(_case)

_NORM = "cluster_axis = 1 : ui32, epsilon = 9.99999974E-6 : f32, operandSegmentSizes = array<i32: 1, 0, 0>"
OF_A_MESH = {
    "mesh_shard": (
        "shard_dims = array<i64: -1, 0>, shard_direction = #ttcore.shard_direction<full_to_shard>, "
        "shard_shape = array<i64: 4, 1>, shard_type = #ttcore.shard_type<devices>", "2x8",
    ),
    "all_gather": ("all_gather_dim = -1 : si32, cluster_axis = 1 : ui32", "8x32"),
    "all_reduce": ("cluster_axis = 0 : ui32, reduce_type = #ttcore.reduce_type<max>", "8x8"),
    "all_reduce_async": ("cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>", "8x8"),
    "reduce_scatter": (
        "cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<min>, scatter_dim = -2 : si32", "2x8",
    ),
    "mesh_partition": ("dim = 0 : si32", "1x8"),
    "collective_permute": ("source_target_pairs = dense<3> : tensor<1x2xi64>", "8x8"),
    "collective_broadcast": ("replica_groups = dense<[[5, 2, 7]]> : tensor<1x3xi64>", "8x8"),
    "all_to_all": ("concat_dim = 0 : si32, replica_groups = dense<[[4, 5, 6, 7], [0, 1, 2, 3]]> : tensor<2x4xi64>, "
                   "split_count = 4 : si32, split_dim = -1 : si32", "32x2"),
    "distributed_rms_norm": (_NORM, "8x8"),
    "distributed_layer_norm": (_NORM.replace("0>", "0, 0>"), "8x8"),
}  # fmt: skip
"""Of rows without a case of one device: the attributes of one operation on an 8x8, and its result."""

UNTRIED = {"get_dimension_size", "rand", "all_to_all_dispatch", "all_to_all_combine"}
"""No oracle has the numbers of the second, and the first has no tensor as result; both are looked at below. The texts
of the exchanges of experts are read again in `tests/equivalence/test_experts.py`."""

RESPELLED = {
    "constant": "elements of a splat have the type of the result",
    "linear": "a count of a destination that is not there is left out",
    "matmul": "a count of a destination that is not there is left out",
}
"""Rows with cases that no compiler writes, with what is written of them."""
OTHER_TTNN = {
    "slice_dynamic": "TTNN has none with a start that is no number",
    "empty": "memory that nothing has written is a full of zeros",
    "avg_pool2d": "with a divisor of its own, it is a sum of windows",
}
"""Rows that the pass, of what is read, makes other operations of than of a program made by hand, with the reason."""


def made_of(case: Any) -> Program:
    """One operation on what the devices hold; one that takes nothing gives a full tensor."""
    made, _ = cases_program([case])
    if case.operands:
        made.arguments = [replace(p, presharded=True) for p in made.arguments]
        made.results = [replace(p, presharded=True) for p in made.results]
    return made


def lowered_alone(made: Program) -> Program:
    """The program by the passes over TTIR alone. The host has no arange of several dims: all devices compute it."""
    on_host = {op.name for op in made.ops} == {"ttir.arange"} and len(made.types[made.results[0].value].shape) > 1
    return to_ttnn(replicated(made) if on_host else made)


def ops_of(text: str) -> list[str]:
    named = re.findall(r'^    (?:%\S+ = )?"([\w.]+)"\(', text, re.MULTILINE)
    return [name for name in named if name != "ttnn.deallocate"]


def test_every_row_is_looked_at() -> None:
    upstream = {name for name, row in OPS.items() if Trait.NOT_UPSTREAM not in row.traits}
    assert upstream == {*CASES, *OF_A_MESH, *UNTRIED}


EQUATIONS = {name for name, row in OPS.items() if Trait.DECOMPOSED_FOR_TTNN in row.traits and name not in PATTERNS}
"""Rows that TTNN has no operation for: they are lowered as the equations of their meaning."""


def chosen(row: str) -> list[Any]:
    return some(CASES[row][::-1], len(CASES[row]))


@pytest.mark.slow(but_one_in=2)
@pytest.mark.parametrize("row", sorted(CASES))
def test_an_op_of_a_text_stays_itself(row: str) -> None:
    kept: set[tuple[bool, bool]] = set()
    for case in CASES[row] if row in OTHER_TTNN else chosen(row):
        made = made_of(case)
        text = mlir_text(made)
        traced = jm.from_mlir(text)
        upper, lower = traced.as_text(), traced.lower().as_text(strict=False)
        equal = row in EQUATIONS or ops_of(lower) == ops_of(mlir_text(lowered_alone(made)))
        kept.add((ops_of(upper) == [f"ttir.{row}"], equal))
        if row not in RESPELLED:
            assert upper == text
        assert jm.from_mlir(upper).as_text() == upper
        assert jm.from_mlir(lower).lower().as_text() == lower
    assert {u for u, _ in kept} == {True}
    assert (False in {n for _, n in kept}) == (row in OTHER_TTNN)


def of_a_mesh(row: str) -> str:
    """A text of one operation on what the devices of a 2x4 mesh hold, or on a full tensor."""
    said, result = OF_A_MESH[row]
    status = "{ttcore.shard_status = #ttcore.shard_status<%s>}"
    before = status % ("unsharded" if row == "mesh_shard" else "presharded")
    out = f"tensor<{result}xf32>"
    return module(
        "2x4", f"%arg0: tensor<8x8xf32> {before}", f"({out} {status % 'presharded'})",
        f'%0 = "ttir.{row}"(%arg0) <{{{said}}}> : (tensor<8x8xf32>) -> {out}', f"return %0 : {out}",
    )  # fmt: skip


@pytest.mark.parametrize("row", sorted(OF_A_MESH))
def test_an_op_of_a_mesh_stays_itself(row: str) -> None:
    text = of_a_mesh(row)
    lines = [line.strip() for line in text.splitlines()]
    written = jm.from_mlir(text).as_text()
    assert [line.strip() for line in written.splitlines()] == lines
    lower = jm.from_mlir(written).lower().as_text()
    assert jm.from_mlir(lower).lower().as_text() == lower


def test_a_broadcast_of_a_text_is_sent_from_the_first_of_its_group() -> None:
    text = of_a_mesh("collective_broadcast").replace("2x4", "1x4").replace("[[5, 2, 7]]", "[[1, 0, 2, 3]]")
    lower = jm.from_mlir(text.replace("tensor<1x3xi64>", "tensor<1x4xi64>")).lower().as_text()
    made = [op for op in ops_of(lower) if op.split(".")[1] not in ("get_device", "to_layout")]
    assert made == ["ttnn.assign", *["ttnn.point_to_point"] * 3]


@only_with_every
@pytest.mark.parametrize("first", range(0, len(CASES), 40))
def test_what_is_kept_gives_the_same_values(first: int) -> None:
    """The program that is written computes what the program that runs does: by the meaning of each op."""
    cases = [c for row in sorted(CASES)[first : first + 40] for c in chosen(row)]
    made, arguments = cases_program(cases)
    lowered = jm.from_mlir(mlir_text(made)).lower()
    want = lowered.compile()(*arguments)
    mesh = in_two_dims(jm.make_mesh((2,), ("x",)))
    got = run_flat(lowered._program(True, 1000, False), mesh, *arguments)
    assert len(got) == len(want)
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_close(f"result {number}", np.asarray(one), np.asarray(other))


def test_without_groups_an_op_is_what_it_means() -> None:
    line = '%0 = "ttir.relu6"(%x) : (tensor<4xf32>) -> tensor<4xf32>'
    traced = jm.from_mlir(module(None, "%x: tensor<4xf32>", "tensor<4xf32>", line, "return %0 : tensor<4xf32>"))
    assert ops_of(traced.as_text()) == ["ttir.relu6"]
    assert "ttnn.relu6" in ops_of(traced.lower().as_text())
    assert "ttnn.relu6(" in traced.lower().as_text("python")
    for stage in (traced, traced.lower()):
        assert not {"ttir.relu6", "ttnn.relu6"} & {*ops_of(stage.as_text(groups=False))}
    assert "imported_op" not in traced.as_text("jaxpr")


def test_random_numbers_and_dimensions_of_a_text() -> None:
    said = "high = 2.0 : f32, low = 1.0 : f32, seed = 7 : ui32, size = [4 : i32]"
    rand = f'%0 = "ttir.rand"() <{{{said}}}> : () -> tensor<4xf32>'
    traced = jm.from_mlir(module(None, "", "tensor<4xf32>", rand, "return %0 : tensor<4xf32>"))
    assert ops_of(traced.as_text()) == ["ttir.rand"]
    assert "ttnn.rand" in ops_of(traced.lower().as_text())


def test_order_and_constants_are_those_of_the_text() -> None:
    lines = [
        """%0 = "ttir.relu6"(%x) : (tensor<2x2xf32>) -> tensor<2x2xf32>""",
        """%1 = "ttir.constant"() <{value = dense<1.5> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>""",
        """%2 = "ttir.constant"() <{value = dense<1.5> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>""",
        """%3 = "ttir.add"(%0, %1) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>""",
        """%4 = "ttir.where"(%x, %3, %2) : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>""",
    ]
    text = module(None, "%x: tensor<2x2xf32>", "tensor<2x2xf32>", *lines, "return %4 : tensor<2x2xf32>")
    traced = jm.from_mlir(text)
    assert ops_of(traced.as_text()) == ["ttir.relu6", "ttir.constant", "ttir.constant", "ttir.add", "ttir.where"]
    assert traced.as_text().count("dense<1.500000e+00> : tensor<2x2xf32>") == 2
    x = np.array([[7, -1], [0, 2]], np.float32)
    got = traced.lower().compile()(x)
    np.testing.assert_array_equal(got, np.where(x != 0, np.clip(x, 0, 6) + 1.5, 1.5))


# --- whole programs --------------------------------------------------------------------------------------------------


def written_again(traced: jm.Traced, mesh: Any) -> int:
    """Compares the texts of a program with what is written of them when they are read; gives how many there are."""
    count = 0
    for stage, read in (
        (traced, lambda t: jm.from_mlir(t, mesh)),
        (traced.lower(), lambda t: jm.from_mlir(t, in_two_dims(mesh)).lower()),
    ):
        for places in (False, True):
            try:
                text = stage.as_text(debug_info=places, strict=False)
            except UnsupportedError:
                continue
            again = read(text)
            assert again.as_text(debug_info=places) == text
            assert read(again.as_text(debug_info=places)).as_text(debug_info=places) == text
            count += 1
    return count


@pytest.mark.slow(but_one_in=9)
@pytest.mark.parametrize("entry", PROGRAMS, ids=lambda e: e.name)
def test_a_program_is_written_again_as_it_was(entry: Entry) -> None:
    traced = entry.traced
    assert written_again(traced, entry.mesh) == 4
    # The other languages print the same operations, too.
    lowered, mesh = traced.lower(), in_two_dims(entry.mesh)
    again = jm.from_mlir(lowered.as_text(strict=False), mesh).lower()
    assert again.as_text("python") == lowered.as_text("python", strict=False)


@pytest.mark.parametrize("part", range(2))
def test_random_programs_are_written_again_as_they_were(part: int) -> None:
    count, programs = 0, count_of(100, 16)
    for seed in range(part, programs, 2):
        stages = Stages.of(draw_program(Seeded(seed)))
        count += written_again(stages.traced, stages.lowered.mesh)
    assert count > 3 * programs // 2


def test_places_that_a_text_names_are_kept() -> None:
    text = """#loc3 = loc("in\\22put")
module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x1>]>} {
  func.func @main(%arg0: tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>} loc(#loc3)) -> (\
tensor<4xf32> {ttcore.shard_status = #ttcore.shard_status<unsharded>}) {
    %0 = "ttir.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32> loc("a \\22b\\22.py":7:3)
    %1 = "ttir.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32> loc(callsite("f"("g.py":2:0) at #loc9))
    %2 = "ttir.neg"(%1) : (tensor<4xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}
#loc9 = loc("h.py":4:0)
"""
    written = jm.from_mlir(text).as_text(debug_info=True)
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", written, re.MULTILINE))
    lines = [line for line in written.splitlines() if "ttir.neg" in line]
    assert [places[line[line.rindex("loc(") + 4 : -1]] for line in lines] == [
        r'"a \22b\22.py":7:3', '"g.py":2:0', "unknown"
    ]  # fmt: skip
    assert r'loc("in\22put")' in written
    assert jm.from_mlir(written).as_text(debug_info=True) == written


def test_programs_of_no_operation_and_statuses_left_open() -> None:
    text = module("1x2", "%arg0: tensor<4xf32>", "tensor<4xf32>", "return %arg0 : tensor<4xf32>")
    for written in (jm.from_mlir(text).as_text(), jm.from_mlir(text).lower().as_text()):
        assert written.count("unsharded") == 2
        assert jm.from_mlir(written).as_text() == written
    size = '%0 = "ttir.get_dimension_size"(%x) <{dimension = 1 : i32}> : (tensor<2x3xf32>) -> tensor<i32>'
    traced = jm.from_mlir(module(None, "%x: tensor<2x3xf32>", "tensor<i32>", size, "return %0 : tensor<i32>"))
    assert size.split("=", 1)[1].replace("%x", "%arg0") in traced.as_text()
    assert traced.lower().compile()(np.zeros((2, 3), np.float32)) == 3


OVERWRITTEN = """module attributes {ttcore.meshes = #ttcore.meshes<[<"mesh" = 1x2>]>} {
  func.func @main(%arg0: tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) -> \
(tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}, \
tensor<4x4xf32> {ttcore.shard_status = #ttcore.shard_status<presharded>}) {
    %0 = "ttnn.neg"(%arg0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = "ttnn.point_to_point"(%arg0, OUT) <{receiver_coord = array<i64: 0, 1>, sender_coord = array<i64: 0, 0>}> : \
(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
"""


@pytest.mark.parametrize("out", ["%0", "%arg0"])
def test_what_an_op_in_place_writes_over_is_copied_first(out: str) -> None:
    """The text means values; where memory is reused while a value is still needed, it is not printed as it stands."""
    traced = jm.from_mlir(OVERWRITTEN.replace("OUT", out))
    lowered = traced.lower()
    assert f'"ttnn.point_to_point"(%arg0, {out})' not in lowered.as_text()
    mesh = jm.make_mesh((1, 2), ("y", "x"))
    x = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    given = on_devices(mesh, {(0, i): x[i] for i in range(2)})
    kept, sent = lowered.reference(given)
    for i in range(2):
        np.testing.assert_array_equal(kept[0, i], -x[i])
        np.testing.assert_array_equal(sent[0, i], x[0] if i else -x[0] if out == "%0" else x[0])


def overwriting(out: int, results: Sequence[int]) -> Program:
    """What an op in place makes of -x, and x itself, as a flat TTNN program; value 0 is x, 1 is -x, 2 what was sent."""
    kind = replace(tensor(4, 4), tile=True)
    made = program(kind, mesh={"y": 1, "x": 2})
    add(made, "ttnn.neg", [0], kind)
    add(made, "ttnn.point_to_point", [0, out], kind, sender_coord=(0, 0), receiver_coord=(0, 1))
    add(made, "ttnn.deallocate", [0], force=False)
    made.arguments = [Port(0, True)]
    made.results = [Port(v, True) for v in results]
    return made


def test_the_verifier_knows_what_is_written_over() -> None:
    verify_program(overwriting(1, [2]))
    for out, results, why in (
        (1, [1, 2], "the return uses value 1 .* after ttnn.point_to_point wrote over it"),
        (0, [1, 2], "works in place on value 0, which is in the memory of an argument"),
    ):
        with pytest.raises(VerifyError, match=why):
            verify_program(overwriting(out, results))
    again = overwriting(1, [2])
    add(again, "ttnn.neg", [1], again.types[1])
    with pytest.raises(VerifyError, match=r"ttnn\.neg uses value 1 .* after ttnn.point_to_point wrote over it"):
        verify_program(again)
    itself = overwriting(1, [2])
    itself.ops[1] = replace_operands(itself.ops[1], (1, 1))
    with pytest.raises(VerifyError, match="writes over value 1 while it reads it"):
        verify_program(itself)


def replace_operands(op: Op, operands: tuple[int, ...]) -> Op:
    return Op(op.name, operands, op.results, op.attributes, op.line)


def test_a_text_of_ttnn_is_exported(tmp_path: Path) -> None:
    entry = BY_NAME["2-D matmul"]
    lowered = entry.lowered
    read = jm.from_mlir(lowered.as_text(), entry.mesh).lower()
    files = {f.name for f in read.export(tmp_path, *jax.tree.leaves(entry.args()), languages=("python",))}
    assert {"main.py", "ttnn.mlir"} <= files
    assert "ttir.mlir" not in files
    assert (tmp_path / "ttnn.mlir").read_text() == lowered.as_text()
