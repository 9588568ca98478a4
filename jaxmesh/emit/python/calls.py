"""Calls of emitted Python: the arguments of a definition's call, and the few ops that print several statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxmesh.dialects.definitions import ttnn_definition
from jaxmesh.dialects.program import Op, Program, Type, Value
from jaxmesh.dialects.ttnn.op import Param, Signature, TtnnOp
from jaxmesh.emit.languages import device_of, tensors_of, without_call
from jaxmesh.emit.python import values as values
from jaxmesh.errors import VerifyError

Names = Mapping[Value, str]


def signature_of(op: Op) -> tuple[TtnnOp, Signature]:
    """Returns the definition of an op, and its Python call."""
    definition = ttnn_definition(op.name)
    if definition is None or not definition.python.params:
        raise without_call(op, definition, "Python")
    return definition, definition.python


def arguments(program: Program, op: Op, definition: TtnnOp, params: Sequence[Param], names: Names) -> str:
    """Returns the text between the parentheses of a definition's call."""
    hosted = bool(op.results) and program.types[op.results[0]].host
    call = _PrintedCall(program, op, definition, names)
    printed = [(p, _SOURCES[p.source](call, p)) for p in params if _is_printed(p, op, hosted)]
    return ", ".join(f"{p.name}={value}" if p.keyword else value for p, value in printed)


def _is_printed(param: Param, op: Op, hosted: bool) -> bool:
    return (param.on_host or not hosted) and (not param.if_set or op.attributes.get(str(param.key)) is not None)


class _PrintedCall(NamedTuple):
    """One call: the op, its definition, and the names of values."""

    program: Program
    op: Op
    definition: TtnnOp
    names: Names

    @property
    def result(self) -> Type:
        """The type of the first result."""
        return self.program.types[self.op.results[0]]


def _operand(call: _PrintedCall, param: Param) -> str:
    tensors, number = tensors_of(call.program, call.op), int(param.key)
    value = tensors[number] if number < len(tensors) else None
    if value is None and number < call.definition.operands[0]:
        raise VerifyError(f"{call.op.name} needs operand {number} ({param.name}), got {len(tensors)} operands.")
    return "None" if value is None else call.names[value]


def _operand_or_attribute(call: _PrintedCall, param: Param) -> str:
    operand = _operand(call, param)
    return str(call.op.attributes[param.form]) if operand == "None" else operand


def _operands(call: _PrintedCall, _: Param) -> str:
    return f"[{', '.join(call.names[v] for v in tensors_of(call.program, call.op) if v is not None)}]"


def _attribute(call: _PrintedCall, param: Param) -> str:
    key = str(param.key)
    if key in call.op.attributes:
        return values.attribute(call.op.attributes[key], param.form)
    known = call.definition.by_name.get(key)
    if known is not None and known.required:
        raise VerifyError(f"{call.op.name} needs the attribute {key!r} ({known.kind}); it is missing.")
    return values.attribute(None if known is None else known.default, param.form)


def _changed_dtype(call: _PrintedCall, _: Param) -> str:
    before = call.program.types[call.op.used[0]].dtype
    return "None" if before == call.result.dtype else values.data_type(call.result.dtype)


def _device_name(call: _PrintedCall, _: Param) -> str:
    return "None" if (device := device_of(call.program, call.op)) is None else call.names[device]


_SOURCES: Mapping[str, Callable[[_PrintedCall, Param], str]] = {
    "operand": _operand,
    "operands": _operands,
    "operand_or_attribute": _operand_or_attribute,
    "operand_device": lambda call, param: f"{_operand(call, param)}.device()",
    "attribute": _attribute,
    "memory_config": lambda call, _: values.memory_config(call.result),
    "dtype": lambda call, _: values.data_type(call.result.dtype),
    "layout": lambda call, _: values.layout(call.result),
    "shape": lambda call, param: values.attribute(call.result.shape, param.form),
    "changed_dtype": _changed_dtype,
    "device": _device_name,
    "mesh_device": _device_name,
    "compute_config": lambda call, _: values.COMPUTE_CONFIG,
    "text": lambda call, param: str(param.key),
    "none": lambda call, _: "None",
}


# --- ops that print several statements -------------------------------------------------------------------------------

Statements = list[tuple[str, str]]
"""Callees with their arguments, in order; `{}` stands for the result of the previous statement."""


def special(program: Program, op: Op, names: Names) -> Statements | None:
    """Returns the statements of an op that opens the mesh or transfers a tensor; None for any other op."""
    writer = _SPECIAL.get(op.name)
    return None if writer is None else writer(program, op, names)


def load_constant(program: Program, op: Op, names: Names, file: str) -> Statements:
    """Returns the call that loads a constant from a file."""
    device = names[op.used[0]] if op.used else "None"
    return [("utils.load_constant", load_arguments(file, program.types[op.results[0]], device))]


def load_arguments(file: str, tensor_type: Type, device: str) -> str:
    """Returns the arguments of a call that loads a tensor from a file."""
    layout, dtype = values.layout(tensor_type), values.data_type(tensor_type.dtype)
    rest = f"{values.memory_config(tensor_type)}, shape={values.shape(tensor_type.shape)}"
    return f'"{file}", {layout}, {dtype}, {device}, {rest}'


def device_call(mesh_shape: Sequence[int]) -> tuple[str, str]:
    """Returns the call that opens the mesh device; several devices need a fabric."""
    sizes = tuple(map(int, mesh_shape))
    fabric = "DISABLED" if all(n == 1 for n in sizes) else "FABRIC_1D"
    return "utils.DeviceGetter.get_device", f"{sizes}, fabric_config=ttnn.FabricConfig.{fabric}"


def _override(config: Any) -> str:
    shape = config.mesh_shape_override
    return "" if shape is None else f", ttnn.MeshShape({values.listed(shape)})"


def _transfer(op: Op, names: Names, role: str, arguments: str) -> Statements:
    tensor, device = op.used
    return [
        (f"ttnn.Mesh{role.capitalize()}Config", arguments),
        (f"ttnn.create_mesh_{role}", f"{names[device]}, {{}}"),
        (op.name, f"{names[tensor]}, {role}={{}}"),
    ]


def _distribute(program: Program, op: Op, names: Names) -> Statements:
    config: Any = op.attributes["mapper_config"]
    placements = ", ".join(f"ttnn.{p!r}" for p in config.placements)
    return _transfer(op, names, "mapper", f"[{placements}]{_override(config)}")


def _aggregate(program: Program, op: Op, names: Names) -> Statements:
    config: Any = op.attributes["composer_config"]
    return _transfer(op, names, "composer", f"{values.listed(config.dims)}{_override(config)}")


_SPECIAL: Mapping[str, Callable[[Program, Op, Names], Statements]] = {
    "ttnn.get_device": lambda program, op, names: [device_call(op.attributes["mesh_shape"])],
    "ttnn.distribute_tensor": _distribute,
    "ttnn.aggregate_tensor": _aggregate,
}
