"""Prepares a module for Shardy: inlines calls, and translates GSPMD's annotations to Shardy's.

The annotations are `mhlo.sharding`, and the custom calls that JAX and torch-xla emit.
`@Sharding` becomes an `sdy.sharding_constraint`. `@SPMDFullToShardShape` and `@SPMDShardToFullShape` stay: values
between them have local types, and no sharding.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jax.sharding import AbstractMesh, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import sdy

from jaxmesh.dialects.quoting import mlir_string
from jaxmesh.errors import UnsupportedError
from jaxmesh.frontends.mlir.attributes import entries
from jaxmesh.frontends.mlir.module import operations, producer
from jaxmesh.frontends.stablehlo.shardings import SHARDING, Attributes, over_mesh
from jaxmesh.jaxprs.compat import parse_hlo_sharding

ANNOTATION = "mhlo.sharding"
FRONTEND = "mhlo.frontend_attributes"
"""The attribute with a frontend's strings."""
_MESH = "mesh"
ENDS = {"arg_attrs": "argument", "res_attrs": "result"}
"""The attributes of a function that describe its arguments and its results."""
OWN_PART = "sdy.all_slice"
"""The composite in tt-mlir that slices out a device's part; its decomposition would use all_to_alls."""
MAX_CALLS, MAX_OPS = 100, 250_000
"""The depth of nested calls, and the operations after inlining, which may be 2**depth."""
_CALLEES = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""The attributes of calls with the names of the called functions."""
_TUPLES = "stablehlo.tuple", "stablehlo.get_tuple_element"
COMPOSITE = "tt.composite_attributes"
"""The attribute of a custom call with the attributes of the composite that it replaces."""


_Bodies = dict[str, tuple[list[ir.Operation], int]]
"""Per function its operations that are calls or about tuples, and the number of its operations after inlining."""


def inline_calls(
    module: ir.Operation, name: str, kept: Callable[[ir.Operation], bool] = lambda _: False
) -> ir.Operation:
    """Inlines every call in a function of the module; Shardy's passes would replicate across calls.

    Returns the function, the only remaining one. A composite that is `kept` becomes a custom call of its name.

    Raises:
      UnsupportedError: the module does not define a function, or a function calls itself.
    """
    functions = {o.attributes["sym_name"].value: o for o in operations(module) if o.name == "func.func"}
    if name not in functions:
        raise UnsupportedError(f"the module does not define @{name}; its functions are {sorted(functions)}.")
    main = functions[name]
    bodies: _Bodies = {}
    _check_calls(name, functions, (), bodies)
    has_tuples = any(o.name in _TUPLES for found, _ in bodies.values() for o in found)
    # Functions that others call come first.
    for found, _ in bodies.values():
        for call, callee in [(o, c) for o in found if (c := callee_of(o)) is not None]:
            if call.name == "stablehlo.composite" and (call.attributes["name"].value == OWN_PART or kept(call)):
                _keep_call(call)
            else:
                _inline(call, functions[callee])
    for other in functions.values():
        if other != main:
            other.erase()
    if has_tuples:
        _open_tuples([o for o in walk(main) if o.name in _TUPLES])
    return main


def _open_tuples(body: list[ir.Operation]) -> None:
    """Replaces the elements of tuples by the tuples' operands, since Shardy does not support tuples."""
    tuples = [o for o in body if o.name == "stablehlo.tuple"]
    for op in [o for o in body if o.name == "stablehlo.get_tuple_element"]:
        if (made := producer(op.operands[0], "stablehlo.tuple")) is not None:
            replace(op, [made.operands[int(op.attributes["index"].value)]])
    for op in tuples:
        if not list(op.results[0].uses):
            op.erase()


def _check_calls(name: str, functions: dict[str, ir.Operation], callers: tuple[str, ...], bodies: _Bodies) -> int:
    """Checks the calls of a function, and adds it to `bodies`; returns the number of its operations after inlining."""
    if name in callers:
        raise UnsupportedError(f"@{name} calls itself through @{callers[-1]}; inlined functions cannot recurse.")
    if name in bodies:
        return bodies[name][1]
    if name not in functions or len(functions[name].regions[0].blocks) != 1:
        raise UnsupportedError(f"the module calls @{name}, but does not define it with a body of one block.")
    if len(callers) >= MAX_CALLS:
        raise UnsupportedError(f"@{name} is called through {MAX_CALLS} functions; calls nest at most so deep.")
    body = walk(functions[name])
    named = [o for o in body if o.name in _CALLEES or o.name in _TUPLES]
    callees = [c for c in map(callee_of, named) if c is not None]
    size = len(body) + sum(_check_calls(c, functions, (*callers, name), bodies) for c in callees)
    if size > MAX_OPS:
        raise UnsupportedError(f"@{name}: its calls, inlined, make {size} ops; at most {MAX_OPS} are read.")
    bodies[name] = named, size
    return size


def walk(op: ir.Operation) -> list[ir.Operation]:
    """Returns every operation inside an operation, at any depth, in pre-order."""
    return operations(op, deep=True)


def create(
    name: str,
    before: ir.Operation,
    operands: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    types: Sequence[ir.Type] | None = None,
) -> ir.Operation:
    """Creates an operation before another one, at its location; by default with results of the other's types."""
    types = [v.type for v in before.results] if types is None else types
    place = ir.InsertionPoint(before)
    return ir.Operation.create(name, types, list(operands), attributes, loc=before.location, ip=place)


def replace(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Replaces the results of an operation by values, and removes it."""
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def ends(function: ir.Operation) -> Iterator[tuple[str, list[ir.Type], list[Attributes]]]:
    """Yields of the arguments and of the results of a function the name of `ENDS`, the types and the attributes."""
    function_type = ir.FunctionType(function.attributes["function_type"].value)
    for name, types in zip(ENDS, (list(function_type.inputs), list(function_type.results)), strict=True):
        written = name in function.attributes
        yield name, types, list(function.attributes[name]) if written else [{} for _ in types]


def change_ends(function: ir.Operation, change: Callable[[str, int, ir.Type, dict[str, ir.Attribute]], None]) -> None:
    """Changes the attributes of arguments and results: `change` gets the name of `ENDS`, number, type and a dict."""
    for name, types, written in ends(function):
        if name in function.attributes:
            rows = [dict(entries(a)) for a in written]
            for i, (value_type, row) in enumerate(zip(types, rows, strict=True)):
                change(name, i, value_type, row)
            function.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in rows])


def callee_of(op: ir.Operation) -> str | None:
    """Returns the name of the function that an operation calls, or None."""
    attribute = _CALLEES.get(op.name)
    return None if attribute is None else op.attributes[attribute].value


def _inline(call: ir.Operation, function: ir.Operation) -> None:
    location = call.location
    if isinstance(location, ir.NameLoc):
        # The name of an inlined op follows the name here, whose last part is the call.
        scope, inner = location.name_str.rpartition("/")[0], location.child_loc
        location = ir.Location.name(scope, inner) if scope else inner
    with ir.InsertionPoint(call), location:
        replace(call, _jax_mlir_ext.inlined_func_call(function, list(call.operands), location))


def _keep_call(composite: ir.Operation) -> None:
    """Replaces a composite by a custom call of its name, with its attributes."""
    written, where = composite.attributes, "composite_attributes"
    configured = written[where] if where in written else ir.DictAttr.get({})
    attributes = {"call_target_name": written["name"], COMPOSITE: configured}
    replace(composite, create("stablehlo.custom_call", composite, composite.operands, attributes).results)


def replace_operands(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    """Replaces the operands of an operation and of the operations inside it."""
    for inner in (op, *walk(op)):
        for i, operand in enumerate(inner.operands):
            if operand in values:
                inner.operands[i] = values[operand]


_NUMBERS = r"\[[0-9]{1,9}(?:,[0-9]{1,9})*\]"
_LAST = r"(?: last_tile_dim_replicate| last_tile_dims=\{(?P<last>[a-z, ]*)\})?"
_TILED = re.compile(
    rf"\{{devices=(?P<tiles>{_NUMBERS})"
    rf"(?:<=(?P<sizes>{_NUMBERS})(?:T\((?P<order>[0-9]{{1,2}}(?:,[0-9]{{1,2}})*)\))?|(?P<list>[0-9]{{1,9}}(?:,[0-9]{{1,9}})*))"
    rf"{_LAST}\}}"
)


def elements(text: str) -> list[str]:
    """Returns the shardings of a tuple's elements, or the one sharding that a text is.

    >>> elements("{{devices=[2,1]<=[2]}, {replicated}}")
    ['{devices=[2,1]<=[2]}', '{replicated}']
    """
    text = text.strip()
    if not re.match(r"\{\s*\{", text):
        return [text]
    return re.findall(r"\{(?:[^{}]|\{[^{}]*\})*\}", text[1:-1])


def is_manual(text: str) -> bool:
    """Returns True for the sharding of a value that each device has its own of."""
    return text.strip() == "{manual}"


def spec_of(text: str, mesh: AbstractMesh) -> PartitionSpec:
    """Reads a sharding as a spec over a mesh.

    Raises:
      UnsupportedError: it is none, or not one over axes of the mesh.
    """
    text = text.strip()
    if text in ("{replicated}", "{maximal device=0}"):
        return PartitionSpec()
    found = _TILED.fullmatch(text)
    if found is None or found["last"] not in (None, "replicated"):
        raise UnsupportedError(
            f"mhlo.sharding = {text[:100]!r} is not a sharding over mesh axes; {{replicated}}, {{manual}} and "
            "{devices=[2,1,4]<=[8] last_tile_dim_replicate} are read."
        )
    sizes = _ints(found["tiles"])
    count = math.prod(sizes)
    rows = _ints(found["sizes"] or f"[{count}]")
    wrong = count != mesh.size or math.prod(rows) != count
    # XLA ends the process for an order that is not a permutation.
    wrong = wrong or sorted(_ints(f"[{found['order']}]") if found["order"] else range(len(rows))) != [*range(len(rows))]
    listed = (found["list"] or "").split(",") if found["list"] else []
    wrong = wrong or (listed and sorted(map(int, listed)) != list(range(count)))
    spec = None if wrong else parse_hlo_sharding(text, mesh)
    if spec is None:
        raise UnsupportedError(
            f"mhlo.sharding = {text[:100]!r} does not split over whole axes of the mesh {dict(mesh.shape)}; give mesh= "
            "the mesh that it was written for."
        )
    return spec


def candidate_meshes(texts: Iterable[str]) -> list[tuple[int, ...]]:
    """Returns the mesh sizes that shardings suggest, each of at least two axes; meshes of more axes come first."""
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        match = _TILED.fullmatch(text.strip())
        if match is None:
            continue
        tiles, sizes = _ints(match["tiles"]), _ints(match["sizes"] or "[1]")
        for row in (sizes, tiles):
            split = tuple(n for n in row if n > 1)
            found[(1,) * (2 - len(split)) + split] = None
    return sorted(found, key=lambda sizes: (-math.prod(sizes), -len(sizes)))


def _ints(text: str) -> list[int]:
    return [int(n) for n in text[1:-1].split(",")]


def target_of(op: ir.Operation) -> str:
    """Returns the target name of a custom call; empty for other operations."""
    return op.attributes["call_target_name"].value if op.name == "stablehlo.custom_call" else ""


def written_shardings(module: ir.Operation) -> list[str]:
    """Returns GSPMD's shardings in a module."""
    texts: dict[str, None] = {}
    for op in walk(module):
        if ANNOTATION in op.attributes:
            texts.update(dict.fromkeys(elements(_text(op.attributes[ANNOTATION]))))
        for attributes in (row for name in ENDS if name in op.attributes for row in op.attributes[name]):
            if ANNOTATION in attributes:
                texts[_text(attributes[ANNOTATION])] = None
    return list(texts)


def _text(attribute: ir.Attribute) -> str:
    return attribute.value if isinstance(attribute, ir.StringAttr) else str(attribute)


def inferred_mesh(module: ir.Operation) -> tuple[int, ...] | None:
    """Returns the axis sizes of a mesh that expresses all of the module's shardings, or None."""
    texts = [t for t in written_shardings(module) if not is_manual(t)]
    candidates = candidate_meshes(texts)
    for sizes in candidates:
        mesh = AbstractMesh(sizes, tuple(f"a{i}" for i in range(len(sizes))))
        try:
            for text in texts:
                spec_of(text, mesh)
        except UnsupportedError:
            continue
        return sizes
    return candidates[0] if candidates else None


def to_shardy(module: ir.Operation, mesh: AbstractMesh) -> None:
    """Rewrites GSPMD's annotations of a module as Shardy's over a mesh.

    Raises:
      UnsupportedError: a sharding cannot be expressed over axes of the mesh.
    """
    if not written_shardings(module):
        return
    with module.context, ir.Location.unknown(module.context):
        axes = ", ".join(f"{mlir_string(a)}={n}" for a, n in mesh.shape.items())
        block = module.regions[0].blocks[0]
        declared = ir.Module.parse(f"sdy.mesh @{_MESH} = <[{axes}]>").body.operations[0].operation
        declared.clone(ir.InsertionPoint.at_block_begin(block))
        for function in [o for o in operations(module) if o.name == "func.func"]:
            change_ends(function, functools.partial(_rewrite_end, mesh))
        for op in [o for o in walk(module) if ANNOTATION in o.attributes]:
            _rewrite(op, mesh)


def _rewrite_end(
    mesh: AbstractMesh, _name: str, _number: int, value_type: ir.Type, attributes: dict[str, ir.Attribute]
) -> None:
    written = attributes.pop(ANNOTATION, None)
    if written is not None and SHARDING not in attributes and not is_manual(_text(written)):
        attributes[SHARDING] = _sharding(_text(written), len(value_type.shape), mesh)


def _rewrite(op: ir.Operation, mesh: AbstractMesh) -> None:
    text, target = _text(op.attributes[ANNOTATION]), target_of(op)
    if target == "Sharding" or op.name == "mhlo.copy":
        value = op.operands[0]
        if not is_manual(text):
            attribute = {"sharding": _sharding(text, len(op.results[0].type.shape), mesh)}
            value = create("sdy.sharding_constraint", op, [value], attribute).results[0]
        replace(op, [value])
        return
    del op.attributes[ANNOTATION]
    if SHARDING in op.attributes or not op.results or is_manual(text):
        return
    each = elements(text)
    if len(each) != len(op.results) or any(map(is_manual, each)):
        raise UnsupportedError(
            f"{op.name} has {len(op.results)} results, but mhlo.sharding = {text[:100]!r} has {len(each)} shardings; "
            "give each result a sharding over mesh axes."
        )
    attributes = [_sharding(t, len(v.type.shape), mesh) for t, v in zip(each, op.results, strict=True)]
    op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(attributes)


def _sharding(text: str, rank: int, mesh: AbstractMesh) -> ir.Attribute:
    spec = [*spec_of(text, mesh)]
    if len(spec) > rank:
        raise UnsupportedError(f"mhlo.sharding = {text[:100]!r} splits {len(spec)} dims of a value with {rank} dims.")
    axes_of_dims = [(e,) if isinstance(e, str) else tuple(e or ()) for e in (*spec, *[None] * (rank - len(spec)))]
    return over_mesh(f"@{_MESH}", tuple(axes_of_dims))
