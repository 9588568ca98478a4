"""What Tenstorrent's own compiler does wrongly or refuses: each row of the table is compiled again.

The rows need the compiler, as those of `test_upstream.py`; a row that fails is mended, or is refused otherwise.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.upstream.environment import UPSTREAM
from jaxmesh.analysis.upstream.worker import close_workers
from jaxmesh.frontends.stablehlo.text import BoundaryShardings
from tests.generators.plain_programs import MESH
from tests.generators.readme_tables import stored
from tests.generators.upstream.families import FAMILIES
from tests.generators.upstream.judge import LESS_PRECISE, REFUSED, RIGHT, WRONG, Judged, difference, judge, unsharded
from tests.generators.upstream.pages import FOLDER, index, page_of, page_text
from tests.generators.upstream.program import Program, placements
from tests.generators.upstream.report import stored_counts, table, unexplained, with_new_rows
from tests.generators.upstream.rows import PLUGIN, ROWS, Row, row_of

CAUSES = {
    "gather of two axes": "gather order: dim 0 is split over y, x",
    "own part over two axes": "partition order: an operand is cut over y, x",
}
"""How the diagnosis names the causes of some rows."""


@pytest.fixture(scope="module")
def compiler() -> Iterator[None]:
    if not os.environ.get(UPSTREAM.variable) and not UPSTREAM.folder.exists():
        pytest.skip(f"no compiler: {UPSTREAM.variable} is not set, and upstream-env has made no {UPSTREAM.folder}")
    yield
    close_workers()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_each_cause_is_still_there(row: Row) -> None:
    judged = judge(row.program.candidate())
    assert row_of(judged) is row, judged
    assert judged.verdict in (REFUSED, row.verdict)
    assert judged.cause.startswith(CAUSES.get(row.name, ""))
    # The diagnosis flags it, too.
    assert judged.diagnosis == row.verdict


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("source", ["x * 2", "x.sum(0)", "x @ x.T", "x[:, 4:8] * 2"])
def test_right_programs_are_right(source: str) -> None:
    judged = judge(Program(source, ("f32[8,16]",), (P("y"),)).candidate())
    assert (judged.verdict, judged.diagnosis, judged.unread) == (RIGHT, RIGHT, {})


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("source", "spec", "argument", "op", "diagnosis"),
    [
        # The sort is right on each device, whatever the order of the columns before it; a view behind it is innocent.
        ("jnp.sort(x, 1)", P(None, ("y", "x")), "i32[8,16]<100", "ttir.all_to_all", WRONG),
        # With another condition, not all devices would reach the gather within a branch.
        ("lax.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x)", P(("x", "y")), "f32[8,16]", "all_gather", WRONG),
        ("lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')", P("y"), "f32[8,8,8,8]",
         "ttnn.typecast", LESS_PRECISE),
    ],
)  # fmt: skip
def test_programs_of_the_hunt_are_named(source: str, spec: P, argument: str, op: str, diagnosis: str) -> None:
    judged = judge(Program(source, (argument,), (spec,)).candidate())
    assert judged.diagnosis == diagnosis
    assert judged.op.endswith(op)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_programs_of_the_rows_have_a_right_value_on_the_mesh(row: Row) -> None:
    candidate = row.program.candidate()
    with warnings.catch_warnings(), jax.enable_x64(candidate.wide):
        warnings.simplefilter("ignore", jm.errors.ShardingWarning)
        found = jm.jit(candidate.fun, **candidate.options)(*candidate.args)
        for x, want in zip(jax.tree.leaves(found), unsharded(candidate), strict=True):
            np.testing.assert_allclose(np.asarray(x), want, rtol=1e-4, atol=1e-4)


def test_the_table_of_the_readme_is_the_one_that_the_command_writes() -> None:
    counts = stored_counts()
    assert table(counts) == stored("upstream")
    assert counts.programs >= 2000
    assert {r.name for r in ROWS} == counts.causes.keys()


def test_a_new_row_counts_its_own_program() -> None:
    counts = stored_counts()
    assert with_new_rows(counts) == counts
    new = dataclasses.replace(ROWS[0], name="a new cause")
    more = with_new_rows(counts, [*ROWS, new])
    assert more.causes == counts.causes | {"a new cause": 1}
    assert more.verdicts == counts.verdicts | {new.verdict: counts.verdicts[new.verdict] + 1}


def test_each_row_has_a_page() -> None:
    assert {p.name for p in FOLDER.glob("*.md")} == {"README.md", *(page_of(r).name for r in ROWS)}
    assert (FOLDER / "README.md").read_text() == index()
    for row in ROWS:
        text = page_of(row).read_text()
        assert text.startswith(f"# {row.verdict}: ")
        assert PLUGIN in text
        assert ("compiled again, it is right" in text) is not bool(row.stays)
        assert row.stays in text
        # A result that is an argument has no operation with elements.
        assert row.verdict != "wrong" or "elements, in [" in text or "left out" in text
        assert not re.search(r"loc\(|/\w+/\w+\.py", text)


@pytest.mark.usefixtures("compiler")
def test_a_page_is_the_one_that_the_command_writes() -> None:
    assert page_text(ROWS[0]) == page_of(ROWS[0]).read_text()


def test_a_program_of_a_new_cause_and_a_diagnosis_that_differs_are_printed() -> None:
    found = [
        Judged("", "x", WRONG, "ttir.tanh", "", {"ttir": 1.0}, {}, WRONG),
        Judged("", "y", WRONG, "ttir.reverse", "", {"ttir": 1.0}, {}, RIGHT),
        Judged("", "z", RIGHT, "ttir.reverse", "", {"ttir": 0.0}, {}, WRONG),
        Judged("", "w", RIGHT, errors={"ttir": 0.0}),
    ]
    assert [line.split(":")[0] for line in unexplained(found)] == ["new cause", "missed", "flagged"]


def test_one_wrong_element_on_one_device_is_a_difference() -> None:
    wanted = np.arange(128, dtype=np.float32).reshape(8, 16)
    ends = BoundaryShardings({"y": 2, "x": 4}, (), (((8, 16), (("x",), ("y",))),), ())
    shards = {(y, x): wanted[2 * x : 2 * x + 2, 8 * y : 8 * y + 8].copy() for y in range(2) for x in range(4)}

    def of_devices() -> jm.MeshTensor:
        whole = np.stack([np.stack([shards[y, x] for x in range(4)]) for y in range(2)])
        split = jm.jit(lambda a: jm.full_to_shard(a, P("y", "x"))[0, 0], mesh=MESH)
        return split(whole)

    assert difference([of_devices()], [wanted], ends) == 0
    shards[1, 2][0, 3] += wanted.max()
    assert difference([of_devices()], [wanted], ends) == 1
    assert difference([wanted], [wanted, wanted], ends) == np.inf
    assert difference([wanted[:4]], [wanted], ends) == np.inf


def test_each_family_has_every_placement_of_its_first_argument() -> None:
    assert len(placements((8, 16))) == 1 + 4 + 4 + 2
    for family in FAMILIES:
        specs = [p[0] for p in family.placements()]
        assert len({str(s) for s in specs}) >= len(placements(placements_shape(family.args[0])))


def placements_shape(written: str) -> tuple[int, ...]:
    return tuple(int(n) for n in written.partition("[")[2].partition("]")[0].split(","))
