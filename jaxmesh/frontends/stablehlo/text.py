"""A function of a StableHLO text: its mesh, residencies and shardings of arguments and results, and its import."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from jax.sharding import AbstractMesh
from jaxlib.mlir import ir

from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.errors import ParseError, UnsupportedError
from jaxmesh.frontends.mlir.attributes import Types, entries, nested
from jaxmesh.frontends.mlir.module import Function, boundary_attributes, check_sizes, choose, line_of, load_text
from jaxmesh.frontends.mlir.preprocess import rewrite
from jaxmesh.frontends.stablehlo import gspmd
from jaxmesh.frontends.stablehlo.gspmd import operations, walk
from jaxmesh.frontends.stablehlo.program import ImportedProgram, import_module
from jaxmesh.frontends.stablehlo.shardings import SHARDING, Sharding, listed, of_end, per_value, read
from jaxmesh.frontends.stablehlo.shardy import mesh_axes, run
from jaxmesh.jaxprs.guarded_passes import refusal
from jaxmesh.jaxprs.source_locations import TextSources
from jaxmesh.jaxprs.untyped import DType
from jaxmesh.sharding.mesh import check_axis_names

_DIALECTS = "stablehlo.", "chlo.", "sdy.", "mhlo.", "arith."
_OWN = ("stablehlo.", "chlo.", "sdy.")
_SHARED = "arith.constant"
"""An op that counts as StableHLO in a module without other ops."""
_THEIRS = ("ttir.", "ttnn.")
_SHARDING = "xla.sdy.sharding"
_HIDDEN = ("xla.sdy.meshes", _SHARDING, "xla.sdy.sharding_rule")
_CONSTRAINTS = ("Sharding", "tt.sharding_constraint")
"""Custom calls that annotate a value with a sharding."""
_SHARDY = re.compile(r"\s*(?:#sdy\.|\{)")
_STRINGS = ("xla-sdy-round-trip-import-shardy-attrs",)
"""The pass that reads `xla.sdy.meshes`, `xla.sdy.sharding` and `@xla.sdy.FuncResultSharding`."""
_STATES = ("Shard", "shard", "sdy", "mpmd", "\\", "?")
"""A part of all that states a sharding, which a backslash may hide in a string, and of dynamic shapes."""
_INLINE_MESH = re.compile(r"\bmesh<")
_LIFT = ("sdy-lift-inlined-meshes",)
"""The pass that gives each mesh written inside of a sharding a name."""


@dataclass(frozen=True, slots=True)
class StablehloText:
    """A function of a StableHLO module.

    Attributes:
      function: the function in the file.
      axes: the sizes of the mesh axes in `sdy.mesh`; None without an `sdy.mesh`.
      where: the line of the mesh.
      presharded: True for each argument on the devices.
      kept: True for each result on the devices.
      device_mesh: the sizes of a mesh that fits GSPMD's shardings; None without such shardings.
      module: the module, with Shardy's attributes decoded from strings.
    """

    function: Function
    axes: dict[str, int] | None
    where: str
    presharded: tuple[bool, ...]
    kept: tuple[bool, ...]
    device_mesh: tuple[int, ...] | None
    module: ir.Operation

    @property
    def needs(self) -> None:
        """The op that needs a mesh without a name; None, since a program without shardings runs on one device."""
        return


def is_stablehlo(function: Function) -> bool:
    """Returns True if a function's module contains ops of StableHLO or Shardy, and none of TTIR or TTNN."""
    module, known = function.home, function.piece.dialects
    if module not in known:
        text = function.piece.rewritten.text
        known[module] = any(name in text for name in _DIALECTS) and _has_own_ops(module)
    return known[module]


def _has_own_ops(module: ir.Operation) -> bool:
    found: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        is_known = name.startswith((*_OWN, *_THEIRS))
        if is_known or name == _SHARED:
            found.append(name)
        return ir.WalkResult.INTERRUPT if is_known else ir.WalkResult.ADVANCE

    module.walk(visit, ir.WalkOrder.PRE_ORDER)
    return bool(found) and not found[-1].startswith(_THEIRS)


def read_function(function: Function) -> StablehloText:
    """Reads the signature of a function of a StableHLO module."""
    module = _readable(function)
    axes, where = None, ""
    for op in operations(module):
        axes_found = mesh_axes(op) if op.name == "sdy.mesh" else {}
        check_axis_names(axes_found)
        if axes_found and (axes is None or math.prod(axes_found.values()) > math.prod(axes.values())):
            axes, where = axes_found, f"line {max(line_of(op, function.piece), 1)}: sdy.mesh"
            check_sizes(tuple(axes.values()), where)
    ends = gspmd.ends(function.operation)
    arguments, results = (boundary_attributes(function, name, len(types)) for name, types, _ in ends)
    return StablehloText(
        function,
        axes,
        where,
        tuple(a.status == "presharded" for a in arguments),
        tuple(r.status == "presharded" for r in results),
        gspmd.inferred_mesh(module) if axes is None and _is_sharded(function) else None,
        module,
    )


def _is_sharded(function: Function) -> bool:
    """Returns True if the text of a function may state a sharding."""
    text = function.piece.rewritten.text
    return any(part in text for part in _STATES)


def _readable(function: Function) -> ir.Operation:
    """Returns a function's module, or a copy with named meshes and with Shardy's attributes decoded from XLA's strings.

    Raises:
      ParseError: the function is not in a module.
      UnsupportedError: the strings are not Shardy's attributes.
    """
    module = function.home
    if module.name != "builtin.module":
        raise ParseError(f"line {function.line}: @{function.name} is in a {module.name}, not in a module.")
    text = function.piece.rewritten.text
    is_encoded, has_constraints = "xla.sdy." in text, any(f"@{name}" in text for name in _CONSTRAINTS)
    passes = (*(_STRINGS if is_encoded else ()), *(_LIFT if "mesh<" in text and _INLINE_MESH.search(text) else ()))
    if not (passes or has_constraints):
        return module
    module = module.clone().operation
    with module.context, ir.Location.unknown(module.context):
        encoded = _take_constraints(module)
        if is_encoded:
            _check_strings(module, function)
        try:
            if passes:
                module = run(module, passes, guarded=True)
        except UnsupportedError as error:
            raise UnsupportedError(f"line {function.line}: @{function.name}: Shardy's attributes: {error}") from None
        _constrain(module, encoded)
    return module


def _constraints(module: ir.Operation) -> list[ir.Operation]:
    return [o for o in walk(module) if gspmd.target_of(o) in _CONSTRAINTS]


def _take_constraints(module: ir.Operation) -> list[str]:
    """Returns the shardings that calls request in strings, which XLA's pass would lose; empty for other calls."""
    texts: list[str] = []
    for op in _constraints(module):
        attributes = nested(op, gspmd.FRONTEND)
        texts.append(_unquoted(attributes[_SHARDING]) if _SHARDING in attributes else "")
    return texts


def _constrain(module: ir.Operation, texts: list[str]) -> None:
    """Replaces calls that request a sharding by Shardy's constraints."""
    axes = [a for op in walk(module) if op.name == "sdy.mesh" for a in mesh_axes(op)]
    quoted = dict(enumerate(map(mlir_string, axes)))
    for op, text in zip(_constraints(module), texts, strict=True):
        # tt-xla numbers axes without a known name.
        named = re.sub(r'"mesh_idx_(\d{1,9})"', lambda m: quoted.get(int(m[1]), m[0]), text)
        if named:
            op.attributes[SHARDING] = ir.Attribute.parse(named)
        requested = per_value(op)
        if requested is not None:
            constraint = gspmd.create("sdy.sharding_constraint", op, [op.operands[0]], {"sharding": requested[0]})
            gspmd.replace(op, constraint.results)


def _check_strings(module: ir.Operation, function: Function) -> None:
    """Checks that the strings contain attributes; the pass ignores or crashes on any other string."""
    where: dict[str, tuple[str, ir.Attribute]] = {}
    for op in (module, *walk(module)):
        dicts = [op.attributes, *(d for end in gspmd.ENDS if end in op.attributes for d in op.attributes[end])]
        for hidden in [dict(entries(r)).get(gspmd.FRONTEND) for r in dicts]:
            for name, attribute in entries(hidden or {}):
                if name in _HIDDEN:
                    text = _unquoted(attribute)
                    line = max(line_of(op, function.piece), 1)
                    rewrite(text, line)
                    where.setdefault(text, (f"line {line}: {op.name}: {name}", attribute))
    for text, (place, attribute) in where.items():
        if not _SHARDY.match(text):
            raise ParseError(f"{place} = {str(attribute)[:200]} is not an attribute of Shardy.")
    if where and refusal("", list(where)):
        text = next((t for t in where if refusal("", [t])), next(iter(where)))
        place, attribute = where[text]
        raise ParseError(f"{place} = {str(attribute)[:200]} is not an attribute of Shardy.")


def _unquoted(attribute: ir.Attribute) -> str:
    return ir.StringAttr(attribute).value.replace('\\"', '"').replace("\\22", '"')


def import_text(text: StablehloText, mesh: AbstractMesh) -> ImportedProgram:
    """Partitions and imports a function.

    Raises:
      UnsupportedError: an op, or a form of it, is not supported.
    """
    function = text.function
    sharded = _is_sharded(function)
    # Without shardings and calls, nothing is changed.
    is_alone = not sharded and len(operations(text.module)) == 1
    module = text.module if is_alone else text.module.clone().operation
    if sharded:
        with module.context, ir.Location.unknown(module.context):
            gspmd.to_shardy(module, mesh)
    try:
        return import_module(
            module,
            mesh,
            TextSources(function.piece.offset),
            presharded=text.presharded,
            name=function.name,
            guarded=True,
            sharded=sharded,
            kept_results=text.kept,
        )
    except RecursionError:
        raise UnsupportedError(f"line {function.line}: @{function.name} nests deeper than Python's stack.") from None


# --- the shardings of arguments and results ---------------------------------------------------------------------------


End = tuple[tuple[int, ...], Sharding | None]


@dataclass(frozen=True, slots=True)
class BoundaryShardings:
    """The shardings at the ends of a function.

    Attributes:
      axes: the sizes of the mesh axes.
      arguments: per argument its global shape, and the mesh axes that split each dim, or None if the text states none.
      results: the same per result.
      dtypes: per argument its element type.
    """

    axes: dict[str, int]
    arguments: tuple[End, ...]
    results: tuple[End, ...]
    dtypes: tuple[DType, ...]


def read_boundary(text: str) -> BoundaryShardings:
    """Returns the shardings at the ends of the function `main` of a StableHLO text.

    A text with global shapes states them with its arguments and results, a partitioned one in its
    `sdy.manual_computation`s.
    """
    function = choose(load_text(text), None)
    meshes = [mesh_axes(op) for op in operations(function.home) if op.name == "sdy.mesh"]
    axes = next(filter(None, meshes), dict[str, int]())
    (block,) = function.operation.regions[0].blocks
    (_, _, stated), (_, _, asked) = gspmd.ends(function.operation)
    known: dict[ir.Value, Sharding] = {
        v: read(written) for v, row in zip(block.arguments, stated, strict=True) if (written := of_end(row)) is not None
    }
    returned: list[ir.Value] = []
    for op in block.operations:
        operation = op.operation
        if operation.name == "sdy.manual_computation":
            known.update(zip(operation.operands, map(read, listed(operation, "in_shardings")), strict=True))
            known.update(zip(operation.results, map(read, listed(operation, "out_shardings")), strict=True))
        elif operation.name == "func.return":
            returned = list(operation.operands)
            for v, row in zip(returned, asked, strict=True):
                if (written := of_end(row)) is not None:
                    known.setdefault(v, read(written))
    types = Types(lambda _: None, narrows=True)
    dtypes = tuple(np.dtype(types(v.type).dtype) for v in block.arguments)
    arguments, results = (tuple(_end(v, known) for v in values) for values in (block.arguments, returned))
    return BoundaryShardings(axes, arguments, results, dtypes)


def _end(value: ir.Value, known: dict[ir.Value, Sharding]) -> End:
    shape, sharding = tuple(ir.RankedTensorType(value.type).shape), known.get(value)
    # Shardings of scalars are empty, and so are short forms for replicated values.
    return shape, None if sharding is None else sharding or ((),) * len(shape)
