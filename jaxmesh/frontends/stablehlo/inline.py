"""Prepares a module for Shardy: calls are inlined."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from jaxmesh.errors import UnsupportedError

_ir: Any = ir
OWN_PART = "sdy.all_slice"
"""The composite by which tt-mlir takes a device's own part, which its decomposition does by all_to_alls."""
COMPOSITE = "tt.composite_attributes"
"""The attribute of a custom call with those of the composite that it stands for."""


def inline_calls(module: Any, name: str = "main", kept: Callable[[Any], bool] = lambda _: False) -> Any:
    """Inlines every call in a function of the module; Shardy's passes would replicate across them.

    Args:
      module: the module's operation, which is changed.
      name: the function.
      kept: says of a composite that it becomes a custom call of its name.

    Returns:
      The function, the only one that is left, by the name `main`, without which Shardy ends the process.

    Raises:
      UnsupportedError: the module does not define a function, or one calls itself.
    """
    functions = {o.attributes["sym_name"].value: o for o in operations(module) if o.name == "func.func"}
    if name not in functions:
        raise UnsupportedError(f"the module has no function @{name}, but {sorted(functions)}.")
    main = functions[name]
    _check_calls(name, functions, (), set())
    body = walk(main)
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
    """Replaces the elements of tuples by the values that the tuples are made of; Shardy has no tuples."""
    tuples = [o for o in body if o.name == "stablehlo.tuple"]
    for op in [o for o in body if o.name == "stablehlo.get_tuple_element"]:
        made = op.operands[0].owner
        if getattr(made, "name", "") == "stablehlo.tuple":
            op.results[0].replace_all_uses_with(made.operands[op.attributes["index"].value])
            op.erase()
    for op in tuples:
        if not list(op.results[0].uses):
            op.erase()


def _check_calls(name: str, functions: dict[str, Any], callers: tuple[str, ...], checked: set[str]) -> None:
    if name in callers:
        raise UnsupportedError(f"@{name} calls itself by way of @{callers[-1]}; functions are inlined, so none may.")
    if name in checked:
        return
    if name not in functions or len(functions[name].regions[0].blocks) != 1:
        raise UnsupportedError(f"the module calls @{name}, of which it has no body of one block.")
    for op in walk(functions[name]):
        callee = callee_of(op)
        if callee is not None:
            _check_calls(callee, functions, (*callers, name), checked)
    checked.add(name)


def operations(op: Any) -> list[Any]:
    """Returns the operations directly inside an operation's regions."""
    return [o.operation for region in op.regions for block in region.blocks for o in block.operations]


def walk(op: Any) -> list[Any]:
    """Returns every operation inside an operation, at any depth, outer ones first."""
    found: list[Any] = []

    def visit(inner: Any) -> Any:
        found.append(inner)
        return _ir.WalkResult.ADVANCE

    op.walk(visit, _ir.WalkOrder.PRE_ORDER)
    return found[1:]


def callee_of(op: Any) -> str | None:
    """Returns the name of the function that an operation calls; None if it calls none."""
    match op.name:
        case "func.call":
            return op.attributes["callee"].value
        case "stablehlo.composite":
            return op.attributes["decomposition"].value
        case _:
            return None


def _inline(call: Any, functions: dict[str, Any]) -> None:
    name = callee_of(call)
    assert name is not None
    block = functions[name].regions[0].blocks[0]
    values = dict(zip(block.arguments, call.operands, strict=True))
    point = _ir.InsertionPoint(call)
    body = [o.operation for o in block.operations]
    for op in body[:-1]:
        copy = op.clone(point).operation
        # A function of a library has no line of the user's.
        for inner in [copy, *walk(copy)]:
            inner.location = _ir.Location.callsite(inner.location, [call.location])
        _replace_operands(copy, values)
        values.update(zip(op.results, copy.results, strict=True))
    for old, value in zip(call.results, body[-1].operands, strict=True):
        old.replace_all_uses_with(values.get(value, value))
    call.erase()


def _keep_call(composite: Any) -> None:
    """Replaces a composite by a custom call of its name, with its attributes."""
    kinds = [v.type for v in composite.results]
    given, where = composite.attributes, "composite_attributes"
    rows = {"call_target_name": given["name"], COMPOSITE: given[where] if where in given else _ir.DictAttr.get({})}
    place = {"loc": composite.location, "ip": _ir.InsertionPoint(composite)}
    made = _ir.Operation.create("stablehlo.custom_call", kinds, list(composite.operands), rows, **place)
    for old, new in zip(composite.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def _replace_operands(op: Any, values: dict[Any, Any]) -> None:
    for i, operand in enumerate(op.operands):
        if operand in values:
            op.operands[i] = values[operand]
    for inner in walk(op):
        for i, operand in enumerate(inner.operands):
            if operand in values:
                inner.operands[i] = values[operand]


def reshape_broadcasts(main: Any) -> None:
    """Turns broadcasts that only add dims of size 1 into reshapes, as XLA does before it runs Shardy.

    Shardy propagates through reshapes before, and through broadcasts after it propagates through products.
    """
    for op in [o for o in walk(main) if o.name == "stablehlo.broadcast_in_dim"]:
        (x,), (y,) = op.operands, op.results
        dims = list(op.attributes["broadcast_dimensions"])
        if dims and dims == sorted(dims) and math.prod(x.type.shape) == math.prod(y.type.shape):
            made = _ir.Operation.create("stablehlo.reshape", [y.type], [x], loc=op.location, ip=_ir.InsertionPoint(op))
            y.replace_all_uses_with(made.results[0])
            op.erase()
