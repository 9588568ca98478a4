"""A region of a program that its devices run by hand (`jax.shard_map`): its values, loops and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxmesh.analysis.diagnose.reference_value import Reference, ReferenceValue
from jaxmesh.analysis.diagnose.stage import without_equal
from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.quoting import axis_names
from jaxmesh.dialects.residency import HOST
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.frontends.jax.retype import spread
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.collectives import OPS as COLLECTIVES
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.gspmd import replace, walk
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import Sources
from jaxmesh.runtime.reference import run_reference

REGION = "sdy.manual_computation"
_LOOP = "stablehlo.while"
INSIDE = frozenset({_LOOP, "stablehlo.case", "stablehlo.if"})
"""The operations whose values within may be kept, and rounded otherwise."""
_MOST = 1000
"""The most operations of a region that a loop becomes."""
_DEEPEST = 4
"""The most loops and branches within each other that are written out."""
_ir: Any = ir
_hlo: Any = stablehlo


def keep_region(reference: Reference, importer: Importer, op: Any, numbers: dict[Any, int], source: Any) -> None:
    """Keeps the values of a region as each device holds them, and its results."""
    block, manual = op.regions[0].blocks[0], tuple(axis_names(str(op.attributes["manual_axes"])))
    *body, end = [o.operation for o in block.operations]
    made = [(o, v) for o in body for v in o.results]
    arrays = [np.asarray(importer.env[v].array) for v in op.operands]
    found = _run_region(op, arrays, reference.axes or {}, [v for _, v in made], manual)
    numbers.update(zip(block.arguments, [numbers[v] for v in op.operands], strict=True))
    for (inner, value), x in zip(made, found[len(op.results) :], strict=True):
        known = tuple(numbers[v] for v in outer_operands(inner, numbers))
        numbers[value] = len(reference.values)
        array, apart = without_equal(x, manual)
        row = ReferenceValue(inner.name, source(inner), known, array, value, op, manual, apart)
        reference.values.append(row)
    for value, returned, x in zip(op.results, end.operands, found[: len(op.results)], strict=True):
        importer.env[value] = whole(x)
        row = ReferenceValue(REGION, source(op), (numbers[returned],), x, value, op)
        numbers[value] = len(reference.values)
        reference.values.append(row)


def branch_of(op: Any, index: int) -> int:
    """Returns the number of the region that a branch takes; an index out of range selects the last one."""
    last = len(op.regions) - 1
    return 1 - index if op.name == "stablehlo.if" else index if 0 <= index <= last else last


class WrittenLoop(NamedTuple):
    """A loop of a region: its iterations, None if it stays; the most of a device; and whether it goes on, each time."""

    rounds: int | None
    most: int
    tests: list[Any]


def write_out(region: Any, arrays: Sequence[Any], sizes: Mapping[str, int], tests: bool) -> list[list[WrittenLoop]]:
    """Replaces the loops and branches of a region, and those within them, by what its devices perform.

    Returns the loops by depth, with their `tests` if asked. A loop stays if its iterations are too many, or if devices
    differ in their number. If devices take different branches that only compute, all of them are performed, and the
    branch becomes the choice between their results. The region holds for these arrays alone.
    """
    rounds = list[list[WrittenLoop]]()
    for _ in range(_DEEPEST):
        inner = [o.operation for o in region.regions[0].blocks[0].operations if _is_written_out(o.operation)]
        rounds.append([])
        taken = _taken(region, inner, arrays, sizes) if inner else []
        stays = True
        for op, (number, most) in zip(inner, taken, strict=True):
            stays &= number is None and (op.name == _LOOP or not _is_local(op))
            if op.name == _LOOP:
                found = [] if number is None else _replace(op, number, tests)
                rounds[-1].append(WrittenLoop(number, most, found))
            elif number is not None:
                replace(op, _performed(op.regions[number].blocks[0], [], _ir.InsertionPoint(op)))
            elif _is_local(op):
                _choose(op)
        if stays:
            break
    return rounds


def _is_written_out(op: Any) -> bool:
    """Returns True for a loop or a branch, not for the choice between values."""
    return op.name in INSIDE and any(len(r.blocks[0].operations) > 1 for r in op.regions)


def _is_local(branch: Any) -> bool:
    """Returns True if a device may perform a branch that it does not take: it ends, and never exchanges data."""
    return not any(op.name == _LOOP or op.name in COLLECTIVES for op in walk(branch))


def _choose(branch: Any) -> None:
    """Performs all branches before an operation, which becomes the choice between their results."""
    for region in branch.regions:
        *body, end = [o.operation for o in region.blocks[0].operations]
        for at, value in enumerate(_performed(region.blocks[0], [], _ir.InsertionPoint(branch))):
            end.operands[at] = value
        for op in reversed(body):
            op.erase()


def _taken(
    region: Any, inner: Sequence[Any], arrays: Sequence[Any], sizes: Mapping[str, int]
) -> list[tuple[int | None, int]]:
    """Returns of each loop how often it goes round, of each branch the number of its region, None if it stays; and the
    greatest number of a device."""
    loops = [_counting(op) if op.name == _LOOP else None for op in inner]
    read = [op.operands[0] if loop is None else loop.results[-1] for op, loop in zip(inner, loops, strict=True)]
    manual = tuple(axis_names(str(region.attributes["manual_axes"])))
    found = _run_region(region, arrays, sizes, read, manual)[len(region.results) :]
    taken = list[tuple[int | None, int]]()
    for op, loop, x in zip(inner, loops, found, strict=True):
        number, *others = {int(n) for n in x.flat}
        if loop is None:
            taken.append((None if others else branch_of(op, number), number))
        else:
            loop.erase()
            is_long = number * len(op.regions[1].blocks[0].operations) > _MOST
            taken.append((None if others or is_long else number, max(number, *others, 0)))
    return taken


def _counting(loop: Any) -> Any:
    """Creates a copy of a loop before the loop, with one more result: how often the loop goes round."""
    scalar = _ir.RankedTensorType.get((), _ir.IntegerType.get_signless(32))
    with _ir.InsertionPoint(loop):
        zero, one = (_hlo.constant(_ir.DenseElementsAttr.get(np.int32(n))) for n in (0, 1))
        made = _hlo.WhileOp([*(v.type for v in loop.results), scalar], [*loop.operands, zero]).operation
    for region, known in zip(made.regions, loop.regions, strict=True):
        types = [*(v.type for v in loop.operands), scalar]
        block = region.blocks.append(*types, arg_locs=[loop.location] * len(types))
        *states, count = block.arguments
        results = _performed(known.blocks[0], states, _ir.InsertionPoint(block))
        with _ir.InsertionPoint(block):
            _hlo.ReturnOp(results if known == loop.regions[0] else [*results, _hlo.add(count, one)])
    return made


def _replace(loop: Any, count: int, tests: bool) -> list[Any]:
    """Replaces a loop by so many iterations; with `tests`, returns whether it goes on, each time."""
    condition, body = (r.blocks[0] for r in loop.regions)
    point, states, found = _ir.InsertionPoint(loop), list(loop.operands), list[Any]()
    for iteration in range(count + 1):
        found += _performed(condition, states, point) if tests else []
        states = _performed(body, states, point) if iteration < count else states
    replace(loop, states)
    return found


def _performed(block: Any, states: Sequence[Any], point: Any) -> list[Any]:
    """Copies the operations of a block for its arguments; returns what stands for its results."""
    *ops, end = [o.operation for o in block.operations]
    names: dict[Any, Any] = dict(zip(block.arguments, states, strict=True))
    for op in ops:
        made = op.clone(point).operation
        for inner in (made, *walk(made)):
            for at, value in enumerate(inner.operands):
                inner.operands[at] = names.get(value, value)
        names.update(zip(op.results, made.results, strict=True))
    return [names.get(v, v) for v in end.operands]


def _run_region(
    op: Any, arrays: Sequence[Any], sizes: Mapping[str, int], inner: Sequence[Any], manual: Sequence[str]
) -> list[Any]:
    """Returns the global results of a region for global operands, and some values within, one for each device along
    the manual axes: its devices run one after the other."""
    importer = Importer(sizes, Decisions(Sources(())))

    def run(*args: Any) -> list[Any]:
        shards = [Sharded(full_to_shard(x, PartitionSpec()), shardings.replicated(x.ndim)) for x in args]
        importer.env.update(zip(op.operands, shards, strict=True))
        importer.perform(op)
        outs = [importer.settle(importer.env[v]) for v in op.results]
        whole = [shard_to_full(y.array, shardings.as_spec(y.sharding)) for y in outs]
        return [*whole, *[_piled(importer.settle(importer.env[v]), manual) for v in inner]]

    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    program = trace_typed(run, structs, [()] * len(arrays), mesh)
    results = run_reference(program, [HOST] * len(arrays), sizes, list(arrays), RULES["ttir"])
    return [np.asarray(y) for y in results]


def _piled(x: Sharded, manual: Sequence[str]) -> Any:
    """Returns the values of all devices along some axes, which become the first dims."""
    apart = jax.lax.expand_dims(spread(x.array, manual), range(len(manual)))
    return shard_to_full(apart, shardings.as_spec((*((a,) for a in manual), *x.sharding)))


def outer_operands(op: Any, numbers: Mapping[Any, int]) -> list[Any]:
    """Returns the operands of an operation, and the values that its regions read from outside."""
    inner = [v for o in walk(op) for v in o.operands if v in numbers]
    return [*op.operands, *inner]


def whole(x: Any) -> Sharded:
    """Returns a value that every device has whole."""
    given: Any = x
    array: Any = given if isinstance(x, np.ndarray) else jnp.asarray(x)
    return Sharded(array, shardings.replicated(array.ndim))
