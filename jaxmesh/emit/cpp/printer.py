"""C++ text: prints a flat TTNN program as tt-mlir's EmitC does, one statement after the other.

The text compiles against the host emulation in `include/`. Comments state what EmitC omits: constants, the mesh,
point to point.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxmesh.dialects.definitions import ttnn_definition
from jaxmesh.dialects.program import LOOP, Op, Program, Type, Value
from jaxmesh.dialects.ttnn.op import Param, TtnnOp
from jaxmesh.emit.cpp import values as values
from jaxmesh.emit.cpp.values import NOTHING, TENSOR, TENSORS, function_name, remark
from jaxmesh.emit.languages import CONSTANT_LIMIT, StoredConstants, device_of, tensors_of, without_call
from jaxmesh.emit.names import inputs_function
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementShard

_DISTRIBUTED = "::ttnn::distributed"
_DEVICE = f"::std::optional<::std::reference_wrapper<{_DISTRIBUTED}::MeshDevice>>"
_INLINE = 16
"""The size, in elements, up to which a constant is spelled in its call; a larger constant becomes a table."""
_PER_LINE = 12


SOURCE = "// at "
"""The beginning of a comment with the user's source line of the statements behind it."""


def include_dir() -> Path:
    """Returns the folder of the headers, for the compiler's `-I`."""
    return Path(__file__).parent / "include"


def cpp_text(
    program: Program,
    *,
    load: bool = False,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    constant_limit: int = CONSTANT_LIMIT,
    make_inputs: str | None = None,
    sources: bool = False,
) -> str:
    """Returns a flat TTNN program as a C++ file.

    Args:
      program: the program, of TTNN ops only.
      load: True to load the inputs from `tensors/arg0.npy` and so on, and to compare the results with
        `tensors/expected0.npy` and so on for `--check`; else all inputs are ones.
      exact: True if `--check` requires equal floats, else within rounding; one value per result, or one for all.
      bits: for each result, the bits of the float type whose rounding is allowed; 0 for the result's type.
      constant_limit: the largest constant that the text spells, in elements; others are loaded from `tensors/`.
      make_inputs: the values of inputs that the program creates instead of loading, `"zeros"` or `"random"`.
      sources: True if comments name the user's source line of each operation.
    """
    name, constants = function_name(program.name), StoredConstants(program, constant_limit)
    body = _CppWriter(program, constants, sources=sources).function(name)
    inputs = inputs_text(program, constants, name, load)
    main = main_text(program, name, load, exact, bits, make_inputs)
    return "\n".join(['#include "ttnn-precompiled.hpp"', body, inputs, main])


@dataclass(slots=True)
class _CppWriter:
    """The text of one function while it is written."""

    program: Program
    constants: StoredConstants
    lines: list[str] = field(default_factory=list[str])
    names: dict[Value, str] = field(default_factory=dict[Value, str])
    count: int = 0
    devices: dict[str, str] = field(default_factory=dict[str, str])
    sources: bool = False
    bodies: list[str] = field(default_factory=list[str])
    """The functions of loops, each before the one that calls it."""
    name: str = ""

    def function(self, name: str) -> str:
        self.name = name
        arguments = self.program.arguments
        parameter = f"{TENSORS} {self.fresh()}" if arguments else ""
        for i, argument in enumerate(arguments):
            self.names[argument.value] = self.variable(TENSOR, f"v1[{i}]")
        for op in self.program.ops:
            self.op(op)
        return self.returning(f"{name}({parameter})", [self.names[r.value] for r in self.program.results])

    def returning(self, head: str, results: Sequence[str]) -> str:
        """Returns the function, which returns these variables."""
        vector = self.variable(TENSORS, f"util_create_vec({', '.join(results)})")
        text = f"{TENSORS} {head} {{\n" + "\n".join(self.lines) + f"\n  return {vector};\n}}\n"
        return "\n".join([*self.bodies, text])

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def statement(self, text: str) -> None:
        self.lines.append(f"  {text};")

    def variable(self, type_name: str, text: str) -> str:
        name = self.fresh()
        self.statement(f"{type_name} {name} = {text}")
        return name

    def op(self, op: Op) -> None:
        definition = ttnn_definition(op.name)
        if self.sources and op.line:
            self.lines.append(f"  {SOURCE}{' '.join(op.line.split())}")
        if op.name == LOOP:
            self.loop(op)
        elif op.name in _SPECIAL:
            _SPECIAL[op.name](self, op)
        elif definition is None or not definition.cpp.params:
            raise without_call(op, definition, "C++")
        else:
            self.call(op, definition)

    def call(self, op: Op, definition: TtnnOp) -> None:
        arguments = ", ".join([self.argument(op, definition, p) for p in definition.cpp.params])
        text = f"{definition.cpp.callee}({arguments})"
        if not op.results:
            self.statement(text)
            return
        if definition.cpp_results == "variant":
            text = f"::std::get<0>({text})"
        if len(op.results) == 1 and definition.cpp_results in ("", "variant"):
            self.result(op, text)
            return
        results_type, element = _SEVERAL[definition.cpp_results](len(op.results))
        results = self.variable(results_type, text)
        for i, result in enumerate(op.results):
            self.names[result] = self.variable(TENSOR, element.format(results, i))

    def argument(self, op: Op, definition: TtnnOp, param: Param) -> str:
        """Returns one argument of a call as text."""
        match param.source:
            case "operand":
                tensors = self.tensors(op)
                number = int(param.key)
                return (tensors[number] if number < len(tensors) else None) or NOTHING
            case "operands":
                return self.variable(TENSORS, f"util_create_vec({', '.join(t for t in self.tensors(op) if t)})")
            case "attribute":
                return self.attribute(op, definition, param)
            case "device":
                return self.device_option(op)
            case "mesh_device":
                return self.device(op) or NOTHING
            case "text":
                return str(param.key)
            case _:
                return _OF_RESULT[param.source](self.program.types[op.results[0]])

    def tensors(self, op: Op) -> list[str | None]:
        """Returns the operands without device handles."""
        return [None if v is None else self.names[v] for v in tensors_of(self.program, op)]

    def attribute(self, op: Op, definition: TtnnOp, param: Param) -> str:
        name = str(param.key)
        value: object = op.attributes.get(name, definition.by_name[name].default)
        if param.form == "array":
            return self.loaded(op, file, value) if (file := self.constants.file(op)) else self.data(value)
        if param.form == "span":
            span_type = "::ttsl::SmallVector<int32_t>"
            return f"ttsl::make_const_span({self.variable(span_type, values.attribute('int32s', value))})"
        return values.attribute(param.form, value)

    def loaded(self, op: Op, file: str, array: Any) -> str:
        """Returns a vector of elements, loaded from a file."""
        tensor_type = self.program.types[op.results[0]]
        shape, dtype = values.attribute("shape", tensor_type.shape), values.data_type(tensor_type.dtype)
        return f'ttnn::load_elements<{values.table_type(array.dtype)}>("{file}", {shape}, {dtype})'

    def data(self, array: Any) -> str:
        """Returns a vector of elements; a long vector is written as a table first."""
        element_type, elements = values.table(array)
        if len(elements) <= _INLINE:
            return f"::std::vector<{element_type}>{{{', '.join(elements)}}}"
        name = f"constant_{self.fresh()[1:]}"
        lines = [", ".join(elements[i : i + _PER_LINE]) for i in range(0, len(elements), _PER_LINE)]
        self.statement(f"static const {element_type} {name}[] = {{\n    " + ",\n    ".join(lines) + "}")
        return f"::std::vector<{element_type}>(::std::begin({name}), ::std::end({name}))"

    def loop(self, op: Op) -> None:
        """Writes a loop: a vector of the states, which the function of its body replaces a number of times, or while
        the function of its condition yields a truth value."""
        attributes, names = op.attributes, [self.names[v] for v in op.used]
        called = {kind: self.inner(kind, attributes[kind]) for kind in ("body", "condition") if kind in attributes}
        count = len(op.results)
        states = self.variable(TENSORS, f"util_create_vec({', '.join(names[:count])})")
        given = f"util_create_vec({', '.join([*(f'{states}[{i}]' for i in range(count)), *names[count:]])})"
        trips = attributes.get("trips")
        until = f"while (ttnn::is_true({called.get('condition')}({given})[0]))"
        head = until if trips is None else f"for (int32_t i = 0; i < {trips}; ++i)"
        self.lines += [f"  {head} {{", f"    {states} = {called['body']}({given});", "  }"]
        for i, result in enumerate(op.results):
            self.names[result] = self.variable(TENSOR, f"{states}[{i}]")

    def inner(self, kind: str, program: Program) -> str:
        """Writes a function that a loop calls; returns its name."""
        name, constants = f"{self.name}_{kind}_{len(self.bodies)}", StoredConstants(program, sys.maxsize)
        self.bodies.append(_CppWriter(program, constants, sources=self.sources).function(name))
        return name

    # --- the mesh, transfers, layouts, memory ---

    def device(self, op: Op) -> str | None:
        """Returns the variable of the device that is the op's last operand, or None."""
        device = device_of(self.program, op)
        return None if device is None else self.names[device]

    def device_option(self, op: Op) -> str:
        device = self.device(op)
        if device is None:
            return NOTHING
        if device not in self.devices:
            self.devices[device] = self.variable(_DEVICE, f"*{device}")
        return self.devices[device]

    def result(self, op: Op, text: str) -> None:
        self.names[op.results[0]] = self.variable(TENSOR, text)

    def get_device(self, op: Op) -> None:
        self.names[op.results[0]] = self.open_mesh(op.attributes["mesh_shape"])

    def open_mesh(self, sizes: Iterable[int]) -> str:
        """Writes the call that opens the mesh; returns its variable."""
        return self.variable(f"{_DISTRIBUTED}::MeshDevice*", f"ttnn::DeviceGetter::getInstance({mesh_shape(sizes)})")

    def distribute_tensor(self, op: Op) -> None:
        self.transfer(op, "mapper", "TensorToMesh", mapper(op.attributes["mapper_config"]))

    def aggregate_tensor(self, op: Op) -> None:
        config: MeshComposerConfig = op.attributes["composer_config"]
        text = _config([str(d) for d in config.dims], config.mesh_shape_override)
        self.transfer(op, "composer", "MeshToTensor", text)

    def transfer(self, op: Op, role: str, pointee: str, text: str) -> None:
        """Writes the config, a reference to the mesh, the mapper or composer, and the call that reads it."""
        tensor, device = (self.names[v] for v in op.used)
        config = f"{_DISTRIBUTED}::Mesh{role.capitalize()}Config"
        config_variable = self.variable(config, f"{config}{{{text}}}")
        mesh = self.variable(f"{_DISTRIBUTED}::MeshDevice&", f"*{device}")
        create = f"{_DISTRIBUTED}::create_mesh_{role}({mesh}, {config_variable})"
        owner = self.variable(f"::std::unique_ptr<{_DISTRIBUTED}::{pointee}>", create)
        reference = f"ref_{owner[1:]}"
        self.statement(f"auto& {reference} = *{owner}")
        callee = op.name.removeprefix("ttnn.")
        self.result(op, f"{_DISTRIBUTED}::{callee}({tensor}, {reference})")


_SEVERAL: Mapping[str, Callable[[int], tuple[str, str]]] = {
    "": lambda _: (TENSORS, "{}[{}]"),
    "vector": lambda _: (TENSORS, "{}[{}]"),
    "array": lambda count: (f"::std::array<{TENSOR}, {count}>", "{}[{}]"),
    "tuple": lambda count: (f"::std::tuple<{', '.join([TENSOR] * count)}>", "::std::get<{1}>({0})"),
    "optionals": lambda _: (f"::std::vector<::std::optional<{TENSOR}>>", "util_get_optional_value({}[{}])"),
}
"""Functions from the number of results to their C++ type and the access to a result, by the container."""
_SPECIAL: Mapping[str, Callable[[_CppWriter, Op], None]] = {
    "ttnn.get_device": _CppWriter.get_device,
    "ttnn.distribute_tensor": _CppWriter.distribute_tensor,
    "ttnn.aggregate_tensor": _CppWriter.aggregate_tensor,
}
"""The ops that print several statements."""

_OF_RESULT: Mapping[str, Callable[[Type], str]] = {
    "none": lambda _: NOTHING,
    "memory_config": values.memory_config,
    "compute_config": lambda _: values.COMPUTE_CONFIG,
    "dtype": lambda type_: values.data_type(type_.dtype),
    "layout": lambda type_: values.layout(type_.tile),
    "shape": lambda type_: values.attribute("shape", type_.shape),
}
"""Arguments that are derived from the type of the result."""


def mesh_shape(shape: Iterable[int]) -> str:
    """Returns a mesh shape."""
    return f"{_DISTRIBUTED}::MeshShape({{{', '.join(map(str, shape))}}})"


def _config(entries: Sequence[str], override: MeshShape | None) -> str:
    tail = "" if override is None else f", {mesh_shape(override)}"
    return f"{{{', '.join(entries)}}}{tail}"


def mapper(config: MeshMapperConfig) -> str:
    """Returns the text between the braces of a mapper config."""
    owner = f"{_DISTRIBUTED}::MeshMapperConfig"
    placements = (f"Shard{{{p.dim}}}" if isinstance(p, PlacementShard) else "Replicate{}" for p in config.placements)
    return _config([f"{owner}::Placement{{{owner}::{text}}}" for text in placements], config.mesh_shape_override)


def inputs_text(program: Program, constants: StoredConstants, name: str, load: bool) -> str:
    """Returns the function that creates or loads the inputs."""
    writer, device = _CppWriter(program, constants), NOTHING
    if any(not program.types[a.value].host for a in program.arguments):
        device = writer.variable(_DEVICE, f"*{writer.open_mesh(program.mesh.values())}")
    names: list[str] = []
    for i, argument in enumerate(program.arguments):
        tensor_type = program.types[argument.value]
        dtype, layout = values.data_type(tensor_type.dtype), values.layout(tensor_type.tile)
        where = f"{NOTHING if tensor_type.host else device}, {values.memory_config(tensor_type)}"
        # The file stacks the shards of all devices.
        stacked = [math.prod(program.mesh.values())] if load and argument.presharded else []
        shape = values.attribute("shape", [*stacked, *tensor_type.shape])
        tensor = f"ttnn::ones({shape}, {dtype}, {layout}, {where})"
        if load:
            tensor = f'ttnn::load_tensor("tensors/arg{i}.npy", {shape}, {layout}, {dtype}, {where})'
        names.append(writer.variable(TENSOR, tensor))
        writer.lines[-1] += remark(argument.path)
    return writer.returning(f"{inputs_function(name, load)}()", names)


def main_text(
    program: Program,
    name: str,
    load: bool,
    exact: bool | Sequence[bool],
    bits: Sequence[int],
    make_inputs: str | None = None,
) -> str:
    """Returns the function `main`."""
    call = f"::{name}({'v1' if program.arguments else ''})"
    inputs = f"{TENSORS} v1 = ::{inputs_function(name, load)}();"
    if not load:
        lines = [inputs, f"{TENSORS} v2 = {call};", "int32_t v3 = 0;", "return v3;"]
        return _function("int32_t main()", lines)
    files = ", ".join(f'"tensors/expected{i}.npy"' for i in range(len(program.results)))
    # A lambda instead of the function's address: the C library may have functions of the same name.
    run = f"[](const {TENSORS}&{' v1' if program.arguments else ''}) {{ return {call}; }}"
    each = [exact] * len(program.results) if isinstance(exact, bool) else list(exact)
    wanted = values.one(all(each)) if len(set(each)) < 2 else f"{{{', '.join(map(values.one, each))}}}"
    if any(bits):
        wanted += f", {{{', '.join(map(str, bits))}}}"
    lines = [
        f"::std::vector<::std::string> v1 = {{{files}}};",
        f"return ttnn::run_and_check(argc, argv, &::{inputs_function(name, load)}, {run}, v1, {wanted});",
    ]
    if make_inputs is not None:
        lines.insert(0, f'ttnn::make_inputs("{make_inputs}");')
    return _function("int32_t main(int32_t argc, char** argv)", lines)


def _function(head: str, lines: Sequence[str]) -> str:
    return f"{head} {{\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"
