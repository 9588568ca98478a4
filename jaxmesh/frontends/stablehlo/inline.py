"""Prepares a module for Shardy: inlines calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from jaxmesh.errors import UnsupportedError

_ir: Any = ir
OWN_PART = "sdy.all_slice"
"""The composite in tt-mlir that slices out a device's part; its decomposition would use all_to_alls."""
MAX_CALLS, MAX_OPS = 100, 250_000
"""The depth of nested calls, and the operations after inlining, which may be 2**depth."""
COMPOSITE = "tt.composite_attributes"
"""The attribute of a custom call with the attributes of the composite that it replaces."""


def inline_calls(module: Any, name: str = "main", kept: Callable[[Any], bool] = lambda _: False) -> Any:
    """Inlines every call in a function of the module; Shardy's passes would replicate across calls.

    Args:
      module: the module's operation, which is changed.
      name: the function.
      kept: returns True for a composite that becomes a custom call of its name.

    Returns:
      The function, the only remaining one, renamed `main`; without a `main`, Shardy ends the process.

    Raises:
      UnsupportedError: the module does not define a function, or a function calls itself.
    """
    functions = {o.attributes["sym_name"].value: o for o in operations(module) if o.name == "func.func"}
    if name not in functions:
        raise UnsupportedError(f"the module does not define @{name}; its functions are {sorted(functions)}.")
    main = functions[name]
    bodies: dict[str, tuple[list[Any], int]] = {}
    _check_calls(name, functions, (), bodies)
    body, _ = bodies[name]
    while calls := [o for o in body if callee_of(o) is not None]:
        for call in calls:
            if call.name == "stablehlo.composite" and (call.attributes["name"].value == OWN_PART or kept(call)):
                _keep_call(call)
            else:
                _inline(call, functions)
        body = walk(main)
    for other in functions.values():
        if other != main:
            other.erase()
    main.attributes["sym_name"] = _ir.StringAttr.get("main")
    _open_tuples(body)
    return main


def _open_tuples(body: list[Any]) -> None:
    """Replaces the elements of tuples by the tuples' operands, since Shardy does not support tuples."""
    tuples = [o for o in body if o.name == "stablehlo.tuple"]
    for op in [o for o in body if o.name == "stablehlo.get_tuple_element"]:
        producer = op.operands[0].owner
        if getattr(producer, "name", "") == "stablehlo.tuple":
            op.results[0].replace_all_uses_with(producer.operands[op.attributes["index"].value])
            op.erase()
    for op in tuples:
        if not list(op.results[0].uses):
            op.erase()


def _check_calls(
    name: str, functions: dict[str, Any], callers: tuple[str, ...], bodies: dict[str, tuple[list[Any], int]]
) -> int:
    """Checks the calls of a function; returns the number of its operations after inlining."""
    if name in callers:
        raise UnsupportedError(f"@{name} calls itself through @{callers[-1]}; inlined functions cannot recurse.")
    if name in bodies:
        return bodies[name][1]
    if name not in functions or len(functions[name].regions[0].blocks) != 1:
        raise UnsupportedError(f"the module calls @{name}, but does not define it with a body of one block.")
    if len(callers) >= MAX_CALLS:
        raise UnsupportedError(f"@{name} is called through {MAX_CALLS} functions; calls nest at most so deep.")
    body = walk(functions[name])
    callees = [c for c in map(callee_of, body) if c is not None]
    size = len(body) + sum(_check_calls(c, functions, (*callers, name), bodies) for c in callees)
    if size > MAX_OPS:
        raise UnsupportedError(f"@{name}: its calls, inlined, make {size} ops; at most {MAX_OPS} are read.")
    bodies[name] = body, size
    return size


def operations(op: Any) -> list[Any]:
    """Returns the operations directly inside an operation's regions."""
    return [o.operation for region in op.regions for block in region.blocks for o in block.operations]


def walk(op: Any) -> list[Any]:
    """Returns every operation inside an operation, at any depth, in pre-order."""
    inner_operations: list[Any] = []

    def visit(inner: Any) -> Any:
        inner_operations.append(inner)
        return _ir.WalkResult.ADVANCE

    op.walk(visit, _ir.WalkOrder.PRE_ORDER)
    return inner_operations[1:]


def callee_of(op: Any) -> str | None:
    """Returns the name of the function that an operation calls, or None."""
    attribute = {"func.call": "callee", "stablehlo.composite": "decomposition"}.get(op.name)
    return None if attribute is None else op.attributes[attribute].value


def _inline(call: Any, functions: dict[str, Any]) -> None:
    name = callee_of(call)
    assert name is not None
    block = functions[name].regions[0].blocks[0]
    values = dict(zip(block.arguments, call.operands, strict=True))
    point = _ir.InsertionPoint(call)
    body = [o.operation for o in block.operations]
    for op in body[:-1]:
        copy = op.clone(point).operation
        # A library function's line is replaced by the call's line.
        for inner in [copy, *walk(copy)]:
            inner.location = _ir.Location.callsite(inner.location, [call.location])
        replace_operands(copy, values)
        values.update(zip(op.results, copy.results, strict=True))
    for old, value in zip(call.results, body[-1].operands, strict=True):
        old.replace_all_uses_with(values.get(value, value))
    call.erase()


def _keep_call(composite: Any) -> None:
    """Replaces a composite by a custom call of its name, with its attributes."""
    result_types = [v.type for v in composite.results]
    written, where = composite.attributes, "composite_attributes"
    configured = written[where] if where in written else _ir.DictAttr.get({})
    attributes = {"call_target_name": written["name"], COMPOSITE: configured}
    location = {"loc": composite.location, "ip": _ir.InsertionPoint(composite)}
    call = _ir.Operation.create("stablehlo.custom_call", result_types, list(composite.operands), attributes, **location)
    for old, new in zip(composite.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def replace_operands(op: Any, values: dict[Any, Any]) -> None:
    """Replaces the operands of an operation and of the operations inside it."""
    for i, operand in enumerate(op.operands):
        if operand in values:
            op.operands[i] = values[operand]
    for inner in walk(op):
        for i, operand in enumerate(inner.operands):
            if operand in values:
                inner.operands[i] = values[operand]
