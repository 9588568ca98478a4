"""The program with global shapes, run unsharded by JAX, with every value kept."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from jaxmesh.analysis.diagnose.arguments import MOST_RUNS, Draws, is_finite
from jaxmesh.analysis.diagnose.functions import named_errors, one_program, only
from jaxmesh.analysis.diagnose.in_numpy import MOVEMENTS, VIEWS, perform, primitive_of
from jaxmesh.analysis.diagnose.keeper import SAME, Keeper
from jaxmesh.analysis.diagnose.reference_value import Reference
from jaxmesh.analysis.diagnose.region import INSIDE, REGION
from jaxmesh.analysis.diagnose.source_lines import SourceLines
from jaxmesh.analysis.diagnose.stage import Array
from jaxmesh.analysis.diagnose.texts import StageTexts, chosen, graphs, texts_of
from jaxmesh.dialects.quoting import axis_names
from jaxmesh.errors import ArgumentTypeError, UnsupportedError
from jaxmesh.frontends.mlir.attributes import x64_for
from jaxmesh.frontends.mlir.module import choose, load_text
from jaxmesh.frontends.mlir.source import read as read_text
from jaxmesh.frontends.stablehlo import shardings
from jaxmesh.frontends.stablehlo.decisions import Decisions
from jaxmesh.frontends.stablehlo.gspmd import ends, inline_calls, walk
from jaxmesh.frontends.stablehlo.importer import Importer
from jaxmesh.frontends.stablehlo.shardings import OWN, SHARDING, Sharding
from jaxmesh.frontends.stablehlo.text import read_boundary, read_function
from jaxmesh.jaxprs.compat import undisturbed
from jaxmesh.jaxprs.source_locations import TextSources
from jaxmesh.runtime.progress import progress
from jaxmesh.runtime.reference import cut_loops
from jaxmesh.validate import quote

_ir: Any = ir
_sdy: Any = sdy
_UNCOMPARABLE = {
    "stablehlo.rng": "it draws random numbers",
    "stablehlo.partition_id": "it reads the device's number",
}


def run_program(
    text: str,
    compiled: str,
    args: Sequence[Any],
    seed: int,
    held: Mapping[int, Array] | None = None,
    *,
    inside: bool = False,
    tests: bool = False,
    unit: float = 0.0,
) -> Reference:
    """Runs a program as `run_draws` does, for given arguments.

    Args:
      text: the program with global shapes.
      compiled: the partitioned program, whose shardings replace those of `text`; or nothing.
      args: the arguments.
      seed: the seed of what differs at random.
      held: values to go on with in place of those that operations give, by number.
      inside: whether the values of loops and branches are kept, of each iteration.
      tests: whether the values of the conditions of loops are kept, too.
      unit: a rounding unit; each result of arithmetic differs at random by up to that, as `seed` says.
    """
    with x64_for(text), progress("unsharded run"):
        program = _GlobalProgram.of(text, compiled)
        return program.run(_checked(args, program.types), held, inside, tests, unit, seed)


def argument_types(
    source: Any, graph: int | None = None, function: str | None = None
) -> Sequence[jax.ShapeDtypeStruct]:
    """Returns the types of the arguments of a program, with global shapes; `source` and the others as in `diagnose`."""
    path: Any = source
    if isinstance(source, (str, os.PathLike)) and Path(path).is_file():
        with named_errors(Path(path)):
            text = chosen(graphs(read_text(Path(path))), graph, function, str(path), str)[0]
            text = only(text, one_program(text, function, str(path)))
            with x64_for(text), undisturbed():
                return _GlobalProgram.of(text, "").types
    text = texts_of(source, graph, function)[0].frontend
    with x64_for(text), undisturbed():
        return _GlobalProgram.of(text, "").types


def run_draws(text: str, compiled: str, args: Sequence[Any] | None, seed: int) -> Iterator[Reference]:
    """Runs a StableHLO program with global shapes; its shardings are read and removed.

    Yields a run for the given arguments, or one for each draw that takes a way which no earlier one has taken. What no
    draw has exercised is in the last one.

    Raises:
      UnsupportedError: the program has an operation without a meaning on one device.
    """
    with x64_for(text), progress("unsharded run"):
        program = _GlobalProgram.of(text, compiled)
        if args is not None:
            yield program.run(_checked(args, program.types))
            return
        draws, draw, inside = Draws(program.blank.block, program.types, seed), 0, False
        last = program.run(draws.arrays(draw))
        for _ in range(MOST_RUNS):
            # Where a loop gives NaN, the values within say which argument makes it do so.
            inside = inside or any(v.op in INSIDE and not is_finite(v) for v in last.values)
            values = last.values
            if inside:
                # A region is written out for these arguments alone.
                values = _GlobalProgram.of(text, compiled).run(draws.arrays(draw), inside=True).values
            if not draws.rescale(values, inside):
                break
            last.values.clear()  # Else both runs are in memory.
            last = program.run(draws.arrays(draw))
        draws.note(last.values, draw)
        while draws.needs_draw(draw := draw + 1):
            another = program.run(draws.arrays(draw))
            if draws.note(another.values, draw):
                yield last
                last = another
        last.unexercised = draws.unexercised()
        yield last


@contextlib.contextmanager
def bounded(texts: StageTexts, reference: Reference) -> Generator[None]:
    """Lets texts run for the arguments of a run of their program: a loop of a wrong text, which may go on forever, is
    ended."""

    @functools.cache
    def most() -> int:
        return run_program(texts.frontend, texts.compiler, reference.inputs, 0, inside=True).longest

    with x64_for(texts.frontend, *texts.stages.values()), cut_loops(most):
        yield


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
            stated = [list(map(shardings.of_end, rows)) for _, _, rows in ends(main)]
            arguments, results = ([_read_whole(a) for a in side] for side in stated)
            asked = [[_read_whole(a) if a is not None and _is_closed(a) else None for a in side] for side in stated]
            reference = Reference(function.name, read.axes, arguments, results, module=module, block=block, asked=asked)
            _remove_shardings(block)
            types = Importer({}, Decisions(TextSources(offset))).types_of(block.arguments)
        declare(reference, compiled)
        return cls(reference, types, SourceLines.of(text), offset)

    def run(
        self,
        inputs: Iterable[Any],
        held: Mapping[int, Array] | None = None,
        inside: bool = False,
        tests: bool = False,
        unit: float = 0.0,
        seed: int = 0,
    ) -> Reference:
        """Runs the program with arguments; the others are as in `run_program`."""
        reference, module = replace(self.blank, values=[], outputs=[], rounds=[], longest=0), self.blank.module
        with module.context, _ir.Location.unknown(module.context):
            importer = Importer({}, Decisions(TextSources(self.offset)))
            _check_fits(importer, reference.block, reference.axes or {})
            random = np.random.default_rng(seed)
            Keeper(reference, importer, self._source, held or {}, inside, tests, unit, random).run(inputs)
        return reference

    def _source(self, op: Any) -> str:
        return self.locations.of_operation(op.location, self.offset)


def _check_fits(importer: Importer, block: Any, axes: Mapping[str, int]) -> None:
    """Raises an error for a program whose values, which are all kept, are more than this machine's memory."""
    size, memory = _peak(importer, block, axes), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise UnsupportedError(
            f"the values of the unsharded program take {size / 2**30:.1f} GiB, and this machine has "
            f"{memory / 2**30:.1f} GiB; diagnose a program with fewer layers, or smaller ones."
        )


def _peak(importer: Importer, block: Any, axes: Mapping[str, int]) -> int:
    """Returns the most bytes that the values of a run take at once.

    All are kept, but a view is in the memory of another value. XLA copies a view whose elements are apart to read it.
    """
    arrays: dict[Any, Array] = {}
    kept = most = 0

    def keep(values: Iterable[Any], times: int = 1) -> None:
        nonlocal kept
        dense = [v for v in values if isinstance(v.type, _ir.RankedTensorType)]
        arrays.update(zip(dense, map(_unallocated, importer.types_of(dense)), strict=True))
        kept += times * sum(arrays[v].nbytes for v in dense)

    keep(block.arguments)
    *body, _ = [o.operation for o in block.operations]
    for op in body:
        read = [arrays[v] for v in op.operands if v in arrays]
        if op.name in SAME:
            arrays.update((r, arrays[v]) for r, v in zip(op.results, op.operands, strict=True) if v in arrays)
        elif (name := primitive_of(op)) in VIEWS and (name != "reshape" or read[0].flags.c_contiguous):
            array = perform(op, read, op.results[0].type.shape, read[0].dtype)
            assert array is not None
            arrays[op.results[0]] = array
        else:
            keep(op.results)
            if op.name == REGION:
                # Each value within is kept of every device.
                manual = axis_names(str(op.attributes["manual_axes"]))
                within = [v for o in op.regions[0].blocks[0].operations for v in o.operation.results]
                keep(within, math.prod(axes[a] for a in manual))
            copies = [] if name in MOVEMENTS else [x.nbytes for x in read if not x.flags.c_contiguous]
            most = max(most, kept + sum(copies))
    return max(most, kept)


def _unallocated(kind: jax.ShapeDtypeStruct) -> Array:
    """Returns an array of a type whose elements must not be read: it has its strides, and memory for one alone."""
    strides = [math.prod(kind.shape[d + 1 :]) * kind.dtype.itemsize for d in range(len(kind.shape))]
    return np.lib.stride_tricks.as_strided(np.empty((), kind.dtype), kind.shape, strides, writeable=False)


def declare(reference: Reference, compiled: str) -> None:
    """Takes the shardings of arguments and results from the partitioned program, where it states them.

    Differences from the program's own shardings are kept in `otherwise`.
    """
    if not compiled:
        return
    boundary = read_boundary(compiled)
    sides = (boundary.arguments, reference.arguments), (boundary.results, reference.results)
    if not all(len(side) == len(own) for side, own in sides):
        return
    sizes, reference.otherwise = reference.axes or {}, []
    for name, (side, own), asked in zip(("argument", "result"), sides, reference.asked, strict=True):
        for number, (end, wanted) in enumerate(zip(side, asked, strict=True)):
            made = end[1]
            if made is not None and wanted is not None and _over_several(made, sizes) != _over_several(wanted, sizes):
                reference.otherwise.append(
                    f"{name} {number} is asked as {shardings.show(wanted)} and made as {shardings.show(made)}"
                )
        # The partitioned program says nothing of an argument that nothing reads.
        own[:] = [o if e[1] is None else e[1] for e, o in zip(side, own, strict=True)]


def _over_several(sharding: Sharding, sizes: Mapping[str, int]) -> Sharding:
    """Returns a sharding without the axes of one device."""
    return tuple(tuple(a for a in axes if sizes.get(a, 1) > 1) for axes in sharding)


def _read_whole(attribute: Any) -> Sharding | None:
    """Returns a sharding; None without one, and for parts of axes."""
    return None if attribute is None or shardings.has_parts(attribute) else shardings.read(attribute)


def _is_closed(attribute: Any) -> bool:
    """Returns True if Shardy may split no dim further."""
    return all(_sdy.DimensionShardingAttr(d).is_closed for d in attribute.dimension_shardings)


def _remove_shardings(block: Any) -> None:
    for op, outer in [(inner, o.operation) for o in block.operations for inner in (o.operation, *walk(o.operation))]:
        # A region runs on each device.
        if op.name in _UNCOMPARABLE and not (op.name == "stablehlo.partition_id" and outer.name == REGION):
            raise UnsupportedError(f"the program has {op.name}: {_UNCOMPARABLE[op.name]}.")
        if op.name not in OWN and SHARDING in op.attributes:
            del op.attributes[SHARDING]


# --- arguments -------------------------------------------------------------------------------------------------------


def _as_argument(x: Any, kind: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an argument; a value of NumPy or Python takes the type that `jax.jit` gives it without 64 bits."""
    bits = kind.dtype.itemsize * (4 if kind.dtype.kind == "c" else 8)
    with jax.enable_x64(bits == 64 or isinstance(x, jax.Array)):
        try:
            return jnp.asarray(x)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"an argument is {quote(x)}, but the program takes {kind.dtype}: {error}"
            ) from error


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
