"""Functions that run on the host's processor, printed as by tt-mlir's EmitPy: bodies of calls of `ttir_cpu`.

The module `ttir_cpu`, and `utils.execute_cpu_hoisted_function`, which runs a body on each device's shards, belong to
tt-mlir.
"""

from __future__ import annotations

from jaxmesh.dialects.host_calls import HOST_FORMS, TORCH_TYPES, host_function_of
from jaxmesh.dialects.program import Op, Program, Value
from jaxmesh.emit.python import values as values
from jaxmesh.errors import MissingRuleError

_WIDE = {"torch.bfloat16": "torch.float32"}
"""Wider types for the arithmetic of narrow floats."""


def host_function(call: Op) -> list[str]:
    """Returns the lines of the function that a call runs on the host."""
    body: Program = call.attributes["function"]
    names: dict[Value, str] = {a.value: f"input_{i}" for i, a in enumerate(body.arguments)}
    parameters = ", ".join(names.values())
    lines = [f"  def {body.name}_impl({parameters}): "]
    for port in body.arguments:
        torch = TORCH_TYPES[body.types[port.value].dtype]
        if torch in _WIDE:
            lines.append(f"    {names[port.value]} = ttir_cpu.typecast({names[port.value]}, dtype={_WIDE[torch]})")
    for number, op in enumerate(body.ops):
        result, arguments = f"ttir_cpu_{number}", _arguments(body, op, names)
        lines.append(f"    {result} = {arguments}")
        names[op.results[0]] = result
    results = [
        f"ttir_cpu.typecast({names[r.value]}, dtype={TORCH_TYPES[body.types[r.value].dtype]})" for r in body.results
    ]
    listed = ", ".join(results)
    mesh = tuple(body.mesh.values())
    shape = f", mesh_shape={mesh}" if any(n > 1 for n in mesh) else ""
    return [
        f"def {body.name}({parameters}): ",
        *lines,
        f"    return {listed if len(results) == 1 else f'({listed})'}",
        f"  return utils.execute_cpu_hoisted_function([{parameters}], {body.name}_impl{shape})",
    ]


def _arguments(body: Program, op: Op, names: dict[Value, str]) -> str:
    """Returns the call of an operation."""
    name = host_function_of(body, op)
    if name is None:
        raise MissingRuleError(f"{op.name} cannot run on the host's processor; add it in dialects/host_calls.py.")
    result_type = body.types[op.results[0]]
    torch = TORCH_TYPES[result_type.dtype]
    arguments = [names[v] for v in op.used]
    torch = _WIDE.get(torch, torch)
    match HOST_FORMS[name]:
        case "shape":
            arguments.append(values.listed(result_type.shape))
        case "permutation":
            arguments.append(values.listed(op.attributes["permutation"]))
        case "dtype":
            arguments.append(f"dtype={torch}")
        case "created" | "number" as form:
            arguments.append(f"shape={values.listed(result_type.shape)}")
            if form == "number":
                arguments.append(f"fill_value={values.plain(op.attributes['fill_value'])}")
            arguments.append(f"dtype={torch}")
        case _:
            pass
    return f"ttir_cpu.{name}({', '.join(arguments)})"
