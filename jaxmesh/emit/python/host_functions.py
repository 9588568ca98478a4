"""Functions that run on the host's processor, as tt-mlir's EmitPy prints them: bodies of calls of `ttir_cpu`.

That module and `utils.execute_cpu_hoisted_function`, which runs a body on each device's shards, are tt-mlir's own.
"""

from __future__ import annotations

from jaxmesh.dialects.host_calls import HOST_FORMS, TORCH_TYPES, host_function_of
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.emit.python import values as values
from jaxmesh.errors import MissingRuleError

_WIDE = {"torch.bfloat16": "torch.float32"}
"""Narrow floats are computed in wider ones."""


def host_function(call: Op) -> list[str]:
    """Returns the lines of the function that a call runs on the host."""
    body: Program = call.attributes["function"]
    names: dict[Value, str] = {a.value: f"input_{i}" for i, a in enumerate(body.arguments)}
    given = ", ".join(names.values())
    lines = [f"  def {body.name}_impl({given}): "]
    for port in body.arguments:
        torch = TORCH_TYPES[body.types[port.value].dtype]
        if torch in _WIDE:
            lines.append(f"    {names[port.value]} = ttir_cpu.typecast({names[port.value]}, dtype={_WIDE[torch]})")
    for number, op in enumerate(body.ops):
        made, arguments = f"ttir_cpu_{number}", _arguments(body, op, names)
        lines.append(f"    {made} = {arguments}")
        names[op.results[0]] = made
    results = [
        f"ttir_cpu.typecast({names[r.value]}, dtype={TORCH_TYPES[body.types[r.value].dtype]})" for r in body.results
    ]
    listed = ", ".join(results)
    mesh = tuple(body.mesh.values())
    shape = f", mesh_shape={mesh}" if any(n > 1 for n in mesh) else ""
    return [
        f"def {body.name}({given}): ",
        *lines,
        f"    return {listed if len(results) == 1 else f'({listed})'}",
        f"  return utils.execute_cpu_hoisted_function([{given}], {body.name}_impl{shape})",
    ]


def _arguments(body: Program, op: Op, names: dict[Value, str]) -> str:
    """The call of an operation."""
    name = host_function_of(body, op)
    if name is None:
        raise MissingRuleError(f"{op.name} has no function on the host's processor; add one in dialects/host_calls.py.")
    kind = body.types[op.results[0]]
    torch = TORCH_TYPES[kind.dtype]
    given = [names[v] for v in op.used]
    torch = _WIDE.get(torch, torch)
    match HOST_FORMS[name]:
        case "shape":
            given.append(values.listed(kind.shape))
        case "permutation":
            given.append(values.listed(op.attributes["permutation"]))
        case "dtype":
            given.append(f"dtype={torch}")
        case "created" | "number" as form:
            given.append(f"shape={values.listed(kind.shape)}")
            if form == "number":
                given.append(f"fill_value={values.plain(op.attributes['fill_value'])}")
            given.append(f"dtype={torch}")
        case _:
            pass
    return f"ttir_cpu.{name}({', '.join(given)})"
