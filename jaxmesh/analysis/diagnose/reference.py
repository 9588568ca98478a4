"""The program with global shapes, run unsharded by JAX, with every value kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.analysis.diagnose.arguments import MOST_RUNS, Draws
from jaxmesh.analysis.diagnose.in_numpy import perform
from jaxmesh.analysis.diagnose.reference_value import ReferenceValue
from jaxmesh.analysis.diagnose.source_lines import SourceLines, line
from jaxmesh.analysis.diagnose.stage import Array, without_equal
from jaxmesh.analysis.reference_rules import RULES
from jaxmesh.dialects.quoting import axis_names
from jaxmesh.dialects.residency import HOST
from jaxmesh.dialects.ttir.mesh_shard import full_to_shard, shard_to_full
from jaxmesh.errors import ArgumentTypeError, UnsupportedError
from jaxmesh.frontends.jax.retype import spread
from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.gspmd import inline_calls, walk
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING, Sharding
from jaxmesh.frontends.stablehlo.text import read_boundary, read_function
from jaxmesh.frontends.stablehlo.values import Sharded
from jaxmesh.jaxprs.evaluate import trace_typed
from jaxmesh.jaxprs.source_locations import Sources, TextSources
from jaxmesh.runtime.reference import run_reference

_ir: Any = ir
_sdy: Any = sdy
REGION = "sdy.manual_computation"
_UNCOMPARABLE = {
    "stablehlo.rng": "it draws random numbers",
    "stablehlo.partition_id": "it reads the device's number",
}


@dataclass(slots=True)
class Reference:
    """The unsharded run of a program.

    Attributes:
      name: the name of its function.
      axes: the sizes of its mesh axes, by name; None if it has no mesh.
      arguments: the declared sharding of each argument; None where nothing is declared.
      results: the declared shardings of its results.
      outputs: the numbers of the values that it returns.
      values: the arguments, then the results of its operations in order.
      module: the module, in MLIR.
      block: the block of its operations.
      unexercised: what no drawn arguments have exercised, as text.
    """

    name: str
    axes: Mapping[str, int] | None
    arguments: list[Sharding | None]
    results: list[Sharding | None]
    outputs: list[int] = field(default_factory=list[int])
    values: list[ReferenceValue] = field(default_factory=list[ReferenceValue])
    module: Any = None
    block: Any = None
    unexercised: list[str] = field(default_factory=list[str])

    def manual_axes(self, source: str) -> tuple[str, ...]:
        """Returns the mesh axes of a region on a source line, along which each device computes on its own."""
        return next((v.manual for v in self.values if v.manual and line(v.source) == line(source)), ())


def run_program(
    text: str, compiled: str, args: Sequence[Any] | None, seed: int, held: Mapping[int, Array] | None = None
) -> Reference:
    """Runs a program as `run_draws` does, for its first arguments.

    Args:
      text: the program with global shapes.
      compiled: the partitioned program, whose shardings replace those of `text`; or nothing.
      args: the arguments; None for drawn ones.
      seed: the seed of drawn arguments.
      held: values to go on with in place of those that operations give, by number.
    """
    return next(run_draws(text, compiled, args, seed, held))


def types_of(text: str) -> list[jax.ShapeDtypeStruct]:
    """Returns the types of the arguments of a program with global shapes."""
    return _GlobalProgram.of(text, "").types


def run_draws(
    text: str, compiled: str, args: Sequence[Any] | None, seed: int, held: Mapping[int, Array] | None = None
) -> Iterator[Reference]:
    """Runs a StableHLO program with global shapes; its shardings are read and removed.

    Yields a run for the given arguments, or one for each draw that takes a way which no earlier one has taken. What no
    draw has exercised is in the last one.

    Raises:
      UnsupportedError: the program has an operation without a meaning on one device.
    """
    program = _GlobalProgram.of(text, compiled)
    if args is not None:
        yield program.run(_checked(args, program.types), held or {})
        return
    draws, draw = Draws(program.blank.block, program.types, seed), 0
    last = program.run(draws.arrays(draw), held or {})
    for _ in range(0 if held else MOST_RUNS):
        if not draws.rescale(last.values):
            break
        last = program.run(draws.arrays(draw), {})
    draws.note(last.values, draw)
    while draws.needs_draw(draw := draw + 1):
        another = program.run(draws.arrays(draw), held or {})
        if draws.note(another.values, draw):
            yield last
            last = another
    last.unexercised = draws.unexercised()
    yield last


@dataclass(frozen=True, slots=True)
class _GlobalProgram:
    """A program that can run.

    Attributes:
      blank: what is known of it before a run.
      types: the types of its arguments.
      locations: the lines of its text.
      offset: the lines before its module.
    """

    blank: Reference
    types: list[jax.ShapeDtypeStruct]
    locations: SourceLines
    offset: int

    @classmethod
    def of(cls, text: str, compiled: str) -> _GlobalProgram:
        file = load_text(text)
        function = choose(file, None)
        read = read_function(function)
        module, offset = read.module.clone().operation, function.piece.offset
        with module.context, _ir.Location.unknown(module.context):
            main = inline_calls(module, function.name)
            block = main.regions[0].blocks[0]
            *_, end = block.operations
            ends = _of_ends(main, "arg_attrs", len(block.arguments)), _of_ends(main, "res_attrs", len(end.operands))
            reference = Reference(function.name, read.axes, *ends, module=module, block=block)
            _remove_shardings(block)
            types = Importer({}, Decisions(TextSources(offset))).types_of(block.arguments)
        declare(reference, compiled)
        return cls(reference, types, SourceLines.of(text), offset)

    def run(self, inputs: Iterable[Any], held: Mapping[int, Array]) -> Reference:
        """Runs the program with arguments."""
        reference, module = replace(self.blank, values=[], outputs=[]), self.blank.module
        with module.context, _ir.Location.unknown(module.context):
            importer = Importer({}, Decisions(TextSources(self.offset)))
            _run(reference, importer, inputs, self._source, held)
        return reference

    def _source(self, op: Any) -> str:
        return self.locations.of_operation(op.location, self.offset)


def declare(reference: Reference, compiled: str) -> None:
    """Takes the shardings of arguments and results from the partitioned program, where it states them."""
    if not compiled:
        return
    ends = read_boundary(compiled)
    sides = (ends.arguments, reference.arguments), (ends.results, reference.results)
    if all(len(side) == len(own) for side, own in sides):
        # The partitioned program says nothing of an argument that nothing reads.
        arguments, results = ([o if e[1] is None else e[1] for e, o in zip(*s, strict=True)] for s in sides)
        reference.arguments, reference.results = arguments, results


def _run(
    reference: Reference, importer: Importer, inputs: Iterable[Any], source: Any, held: Mapping[int, Array]
) -> None:
    numbers: dict[Any, int] = {}

    def keep(value: Any, op: str, line: str, operands: Sequence[Any], operation: Any = None) -> None:
        known = tuple(numbers[v] for v in operands)
        numbers[value] = len(reference.values)
        if numbers[value] in held:
            importer.env[value] = _whole(held[numbers[value]])
        array = np.asarray(importer.env[value].array)
        reference.values.append(ReferenceValue(op, line, known, array, value, operation))

    block = reference.block
    for number, (value, x) in enumerate(zip(block.arguments, inputs, strict=True)):
        importer.env[value] = _whole(x)
        keep(value, "argument", f"argument {number}", ())
    *body, end = [o.operation for o in block.operations]
    for op in body:
        if op.name == REGION:
            _keep_region(reference, importer, op, numbers, source)
            continue
        _import(importer, op)
        for value in op.results:
            keep(value, op.name, source(op), _outer_operands(op, numbers), op)
    reference.outputs = [numbers[v] for v in end.operands]


def _keep_region(reference: Reference, importer: Importer, op: Any, numbers: dict[Any, int], source: Any) -> None:
    """Keeps the values of a region as each device holds them, and its results."""
    block, manual = op.regions[0].blocks[0], tuple(axis_names(str(op.attributes["manual_axes"])))
    *body, end = [o.operation for o in block.operations]
    made = [(o, v) for o in body for v in o.results]
    arrays = [np.asarray(importer.env[v].array) for v in op.operands]
    found = _run_region(op, arrays, reference.axes or {}, [v for _, v in made], manual)
    numbers.update(zip(block.arguments, [numbers[v] for v in op.operands], strict=True))
    for (inner, value), x in zip(made, found[len(op.results) :], strict=True):
        known = tuple(numbers[v] for v in _outer_operands(inner, numbers))
        numbers[value] = len(reference.values)
        array, apart = without_equal(x, manual)
        row = ReferenceValue(inner.name, source(inner), known, array, value, op, manual, apart)
        reference.values.append(row)
    for value, returned, x in zip(op.results, end.operands, found[: len(op.results)], strict=True):
        importer.env[value] = _whole(x)
        row = ReferenceValue(REGION, source(op), (numbers[returned],), x, value, op)
        numbers[value] = len(reference.values)
        reference.values.append(row)


def _import(importer: Importer, op: Any) -> None:
    if op.name in OWN or op.name == "stablehlo.optimization_barrier":
        # Of a value with a sharding constraint the unsharded program has one copy.
        for value, operand in zip(op.results, op.operands, strict=True):
            importer.env[value] = importer.env[operand]
        return
    if len(op.results) == 1:
        (result,) = importer.types_of(op.results)
        array = perform(op, [importer.env[v].array for v in op.operands], result.shape, result.dtype)
        if array is not None:
            importer.env[op.results[0]] = Sharded(array, shardings.replicated(array.ndim))
            return
    importer.perform(op)


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


def _outer_operands(op: Any, numbers: Mapping[Any, int]) -> list[Any]:
    """Returns the operands of an operation, and the values that its regions read from outside."""
    inner = [v for o in walk(op) for v in o.operands if v in numbers]
    return [*op.operands, *inner]


def _whole(x: Any) -> Sharded:
    whole: Any = x
    array: Any = whole if isinstance(x, np.ndarray) else jnp.asarray(x)
    return Sharded(array, shardings.replicated(array.ndim))


def _remove_shardings(block: Any) -> None:
    for op, outer in [(inner, o.operation) for o in block.operations for inner in (o.operation, *walk(o.operation))]:
        # A region runs on each device.
        if op.name in _UNCOMPARABLE and not (op.name == "stablehlo.partition_id" and outer.name == REGION):
            raise UnsupportedError(f"the program has {op.name}: {_UNCOMPARABLE[op.name]}.")
        if op.name not in OWN and SHARDING in op.attributes:
            del op.attributes[SHARDING]


# --- shardings -------------------------------------------------------------------------------------------------------


def _of_ends(main: Any, name: str, count: int) -> list[Sharding | None]:
    if name not in main.attributes:
        return [None] * count
    rows = [dict(entries(a)) for a in main.attributes[name]]
    return [_read(_sdy.TensorShardingAttr(row[SHARDING])) if SHARDING in row else None for row in rows]


def _read(attribute: Any) -> Sharding | None:
    dims = [_sdy.DimensionShardingAttr(d) for d in attribute.dimension_shardings]
    if any(_sdy.AxisRefAttr(a).sub_axis_info is not None for d in dims for a in d.axes):
        return None
    return shardings.read(attribute)


# --- arguments -------------------------------------------------------------------------------------------------------


def _as_argument(x: Any, kind: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an argument; a value of NumPy or Python takes the type that `jax.jit` gives it without 64 bits."""
    bits = kind.dtype.itemsize * (4 if kind.dtype.kind == "c" else 8)
    with jax.enable_x64(bits == 64 or isinstance(x, jax.Array)):
        return jnp.asarray(x)


def _checked(args: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    if len(args) != len(types):
        raise ArgumentTypeError(f"the program takes {len(types)} arguments, got {len(args)}.")
    arrays = [_as_argument(x, t) for x, t in zip(args, types, strict=True)]
    for number, (x, t) in enumerate(zip(arrays, types, strict=True)):
        if x.shape != t.shape or x.dtype != t.dtype:
            raise ArgumentTypeError(
                f"argument {number} is {x.dtype}{list(x.shape)}, but the program takes {t.dtype}{list(t.shape)} "
                "(global shapes); give an array of that type."
            )
    return arrays
