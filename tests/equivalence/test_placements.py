"""Programs of one operation, placed in every way on a mesh, give what NumPy gives; so do those that XLA gets wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import jax
import pytest

from jaxmesh.errors import JaxmeshError
from tests.generators.oracles import count_of
from tests.generators.placements import programs, sweep, xla_faults
from tests.generators.readme_tables import stored

FURTHER = ("compile", "python", "unsharded")
"""The ways that a part of the placements runs in."""
MOST = {"2x4": count_of(20, 8), "8": count_of(10, 6), "2x2x2": count_of(4, 3)}
"""The placements of a family on a mesh; `--cases 10000` takes them all."""


def _some(family: str, mesh_name: str, most: int, *, inside: bool = False) -> list[sweep.Placement]:
    """Returns evenly spaced placements of a family, all of them if there are no more than `most`."""

    def every() -> Iterator[sweep.Placement]:
        mesh = sweep.make_mesh(mesh_name)
        for program in programs.FAMILIES[family]():
            yield from sweep.placements(program, mesh, inside=inside)

    step = -(-sum(1 for _ in every()) // most)
    return list(itertools.islice(every(), None, None, step))


def _faults(placed: list[sweep.Placement], *ways: str) -> list[str]:
    found = sweep.findings(placed, ways)
    return [f"{f.way}: {f.kind}: {f.placement}: {f.text[:300]}" for f in found if not f.named or f.way != "python"]


@pytest.mark.slow(but_one_in=18)
@pytest.mark.parametrize("mesh_name", sweep.MESHES)
@pytest.mark.parametrize("family", programs.FAMILIES)
def test_placements(family: str, mesh_name: str) -> None:
    """The call and the reference run equal NumPy."""
    placed = _some(family, mesh_name, MOST[mesh_name])
    assert not _faults(placed, "call", "reference")
    assert not _faults(placed[:: -(-len(placed) // count_of(4, 2))], *FURTHER)


@pytest.mark.slow(but_one_in=18)
@pytest.mark.parametrize("family", programs.FAMILIES)
def test_placements_by_constraints(family: str) -> None:
    """Constraints inside of a program place values as its options do."""
    assert not _faults(_some(family, "2x4", count_of(10, 4), inside=True), "call", "reference")


@pytest.mark.slow(but_one_in=16)
@pytest.mark.parametrize("row", xla_faults.ROWS, ids=lambda r: r.family[0])
def test_what_xla_gets_wrong_is_right_here(row: xla_faults.Fault) -> None:
    """The rows of the table are XLA's, in the versions of JAX that it names, and the values here are the oracle's."""
    assert not _faults(list(row.batch.placed), "call", "compile", "reference", "python", "unsharded")
    if jax.__version__ in xla_faults.VERSIONS:
        assert row.from_process() == row.given[xla_faults.VERSIONS.index(jax.__version__)]


def test_the_table_of_faults_of_xla_is_in_the_readme() -> None:
    """docs/tables/xla_faults.md has the rows."""
    assert stored("xla_faults") == xla_faults.table()


def test_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep fails if an update on a device starts where it does not."""
    from jaxmesh.frontends.stablehlo import shapes

    monkeypatch.setattr(shapes, "_clamp_start", lambda start, most: start * 0)
    found = list(sweep.findings(_some("dynamic_update_slice", "8", 4), ["call", "reference"]))
    assert {f.way for f in found} == {"call", "reference"}
    assert all(f.kind == "wrong" for f in found)


def test_an_error_is_given_to_its_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that raises is divided, and an error of jaxmesh is a named one."""
    placed = _some("reshape", "8", 4)
    bad = placed[1].program

    def refuse(*_: object) -> None:
        raise JaxmeshError("refused")

    monkeypatch.setattr(
        sweep, "WAYS", {"call": lambda b: refuse if any(p.program is bad for p in b.placed) else b.jitted}
    )
    found = list(sweep.findings(placed, ["call"]))
    assert [(f.placement.program, f.kind) for f in found] == [(bad, "named JaxmeshError")]
