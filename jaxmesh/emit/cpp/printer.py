"""C++ text: a flat TTNN program as tt-mlir's EmitC prints it, one statement after the other.

It compiles against the host emulation in `include/`. Comments name what EmitC loses:
constants, the mesh, point to point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxmesh.dialects.definitions import ttnn_definition
from jaxmesh.dialects.imported_op import group_operands
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOAD_CACHED, Op, Program, Type, Value
from jaxmesh.dialects.ttnn.op import Param, TtnnOp
from jaxmesh.emit.constants import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.cpp import values as values
from jaxmesh.emit.cpp.main import inputs_text, main_of_all, main_text
from jaxmesh.emit.cpp.names import function_name
from jaxmesh.emit.cpp.values import NOTHING, TENSOR, TENSORS
from jaxmesh.emit.languages import undecomposed
from jaxmesh.emit.names import unique
from jaxmesh.errors import MissingRuleError
from jaxmesh.sharding.configs import MeshComposerConfig, MeshMapperConfig, MeshShape, PlacementShard

_DISTRIBUTED = "::ttnn::distributed"
_INLINE = 16
"""Up to this many elements a constant stands in its call; larger ones are tables of their own."""
_PER_LINE = 12
_CACHED = "g_cached_result_"


def include_dir() -> Path:
    """The folder of the headers, for the compiler's `-I`."""
    return Path(__file__).parent / "include"


def cpp_text(
    program: Program,
    *,
    load: bool = False,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    constant_limit: int = CONSTANT_LIMIT,
    make_inputs: str | None = None,
) -> str:
    """A flat TTNN program as a C++ file.

    Args:
      program: the program, every op one of TTNN.
      load: whether its inputs come from `tensors/arg0.npy` and so on, and `--check` compares the results with
        `tensors/expected0.npy` and so on; else all inputs are ones.
      exact: whether `--check` wants floats to be equal, too, else within rounding; one for each result, or for all.
      bits: for each result those of the floats by whose rounding it may differ; 0 for its own type.
      constant_limit: the most elements of a constant that the text spells; others are loaded from `tensors/`.
      make_inputs: how the program makes the inputs that it does not load, `"zeros"` or `"random"`.
    """
    name = function_name(program.name)
    writer = _Writer(program, StoredConstants(program, constant_limit))
    body = writer.function(name)
    inputs, main = inputs_text(program, name, load), main_text(program, name, load, exact, bits, make_inputs)
    return "\n".join(['#include "ttnn-precompiled.hpp"', body, inputs, main])


def cpp_module(programs: Sequence[Program]) -> str:
    """Several flat TTNN programs as one C++ file, which runs them one after the other on inputs of ones."""
    names: list[str] = []
    parts: list[str] = []
    taken: set[str] = set()
    for program in programs:
        names.append(unique(function_name(program.name), taken))
        taken.add(names[-1])
        constants = StoredConstants(program, CONSTANT_LIMIT)
        writer = _Writer(program, constants)
        for function in program.functions():
            writer.once[function.name] = name = unique(function_name(function.name), taken)
            taken.add(name)
            parts += [_Writer(function, constants).function(name), f"static {TENSORS} {_CACHED}{name};\n"]
        parts += [writer.function(names[-1]), inputs_text(program, names[-1], load=False)]
    return "\n".join(['#include "ttnn-precompiled.hpp"', *parts, main_of_all(programs, names)])


@dataclass(slots=True)
class _Writer:
    """The text of one function while it is written."""

    program: Program
    constants: StoredConstants
    lines: list[str] = field(default_factory=list[str])
    names: dict[Value, str] = field(default_factory=dict[Value, str])
    count: int = 0
    devices: dict[str, str] = field(default_factory=dict[str, str])
    once: dict[str, str] = field(default_factory=dict[str, str])
    """The functions that are called once, by the names that the program has for them."""

    def function(self, name: str) -> str:
        arguments = self.program.arguments
        given = f"{TENSORS} {self.fresh()}" if arguments else ""
        for i, argument in enumerate(arguments):
            self.names[argument.value] = self.variable(TENSOR, f"v1[{i}]")
        for op in self.program.ops:
            self.op(op)
        results = ", ".join(self.names[r.value] for r in self.program.results)
        made = self.variable(TENSORS, f"util_create_vec({results})")
        return f"{TENSORS} {name}({given}) {{\n" + "\n".join(self.lines) + f"\n  return {made};\n}}\n"

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def statement(self, text: str) -> None:
        self.lines.append(f"  {text};")

    def variable(self, kind: str, text: str) -> str:
        name = self.fresh()
        self.statement(f"{kind} {name} = {text}")
        return name

    def op(self, op: Op) -> None:
        definition = ttnn_definition(op.name)
        if op.name == LOAD_CACHED:
            self.load_cached(op)
        elif op.name in _SPECIAL:
            _SPECIAL[op.name](self, op)
        elif definition is None or not definition.cpp.params:
            if definition is not None and Trait.LAYOUT in definition.traits:
                raise undecomposed(op)
            raise MissingRuleError(
                f"no C++ call for {op.name} ({op.line or 'no line known'}); define it in jaxmesh/dialects/ttnn/*.py."
            )
        else:
            self.call(op, definition)

    def load_cached(self, op: Op) -> None:
        """The results of a function that is called the first time."""
        name = self.once[op.attributes["callee"]]
        kind = f"::std::function<{TENSORS}({TENSORS if op.operands else ''})>"
        function = self.variable(kind, f"&{name}")
        given = f"{self.variable(TENSORS, f'util_create_vec({self.listed(op)})')}, " if op.operands else ""
        cached = self.variable(f"{TENSORS}*", f"&{_CACHED}{name}")
        wrapper = "constEvalFuncWrapper" if op.operands else "constEvalFuncWrapperZeroArg"
        self.statement(f"ttnn::{wrapper}({function}, {given}{cached})")
        for i, result in enumerate(op.results):
            self.names[result] = self.variable(TENSOR, f"(*{cached})[{i}]")

    def listed(self, op: Op) -> str:
        return ", ".join(self.names[v] for v in op.used)

    def call(self, op: Op, definition: TtnnOp) -> None:
        arguments = ", ".join([self.argument(op, definition, p) for p in definition.cpp.params])
        text = f"{definition.cpp.callee}({arguments})"
        if not op.results:
            self.statement(text)
            return
        if len(op.results) == 1 and definition.cpp_results != "optionals":
            self.result(op, text)
            return
        kind, element = _SEVERAL[definition.cpp_results](len(op.results))
        made = self.variable(kind, text)
        for i, result in enumerate(op.results):
            self.names[result] = self.variable(TENSOR, element.format(made, i))

    def argument(self, op: Op, definition: TtnnOp, param: Param) -> str:
        """One argument of a call, printed."""
        match param.source:
            case "operand":
                tensors = self.tensors(op)
                place = int(param.key)
                return (tensors[place] if place < len(tensors) else None) or NOTHING
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
        """The operands that are no device."""
        types = self.program.types
        found = [v for v in op.operands if v is None or types[v].kind == "tensor"]
        sizes = op.attributes.get("operandSegmentSizes")
        grouped = found if None in found else group_operands(sizes, [v for v in found if v is not None])
        return [None if v is None else self.names[v] for v in grouped]

    def attribute(self, op: Op, definition: TtnnOp, param: Param) -> str:
        name = str(param.key)
        value: Any = op.attributes.get(name, definition.by_name[name].default)
        if param.form == "array":
            return self.loaded(op, file, value) if (file := self.constants.file(op)) else self.data(value)
        if param.form == "span":
            kind = "::ttsl::SmallVector<int32_t>"
            return f"ttsl::make_const_span({self.variable(kind, values.attribute('int32s', value))})"
        return values.attribute(param.form, value)

    def loaded(self, op: Op, file: str, array: Any) -> str:
        """A row of elements in a file."""
        kind = self.program.types[op.results[0]]
        shape, dtype = values.attribute("shape", kind.shape), values.data_type(kind.dtype)
        return f'ttnn::load_elements<{values.table_type(array.dtype)}>("{file}", {shape}, {dtype})'

    def data(self, array: Any) -> str:
        """A row of elements; a long one as a table of its own."""
        kind, elements = values.table(array)
        if len(elements) <= _INLINE:
            return f"::std::vector<{kind}>{{{', '.join(elements)}}}"
        name = f"constant_{self.fresh()[1:]}"
        rows = [", ".join(elements[i : i + _PER_LINE]) for i in range(0, len(elements), _PER_LINE)]
        self.statement(f"static const {kind} {name}[] = {{\n    " + ",\n    ".join(rows) + "}")
        return f"::std::vector<{kind}>(::std::begin({name}), ::std::end({name}))"

    # --- the mesh, transfers, layouts, memory ---

    def device(self, op: Op) -> str | None:
        """The variable of the device that is the op's last operand."""
        last = op.operands[-1] if op.operands else None
        return self.names[last] if last is not None and self.program.types[last].kind == "device" else None

    def device_option(self, op: Op) -> str:
        device = self.device(op)
        if device is None:
            return NOTHING
        if device not in self.devices:
            kind = f"::std::optional<::std::reference_wrapper<{_DISTRIBUTED}::MeshDevice>>"
            self.devices[device] = self.variable(kind, f"*{device}")
        return self.devices[device]

    def result(self, op: Op, text: str) -> None:
        self.names[op.results[0]] = self.variable(TENSOR, text)

    def operand(self, op: Op) -> str:
        first = op.operands[0]
        assert first is not None, op
        return self.names[first]

    def get_device(self, op: Op) -> None:
        shape = mesh_shape(op.attributes["mesh_shape"])
        made = self.variable(f"{_DISTRIBUTED}::MeshDevice*", f"ttnn::DeviceGetter::getInstance({shape})")
        self.names[op.results[0]] = made

    def distribute_tensor(self, op: Op) -> None:
        self.transfer(op, "mapper", "TensorToMesh", mapper(op.attributes["mapper_config"]))

    def aggregate_tensor(self, op: Op) -> None:
        self.transfer(op, "composer", "MeshToTensor", composer(op.attributes["composer_config"]))

    def transfer(self, op: Op, role: str, kind: str, text: str) -> None:
        """The config, a reference to the mesh, the mapper or composer, and the call that takes it."""
        config = f"{_DISTRIBUTED}::Mesh{role.capitalize()}Config"
        made = self.variable(config, f"{config}{{{text}}}")
        mesh = self.variable(f"{_DISTRIBUTED}::MeshDevice&", f"*{self.device(op)}")
        create = f"{_DISTRIBUTED}::create_mesh_{role}({mesh}, {made})"
        owner = self.variable(f"::std::unique_ptr<{_DISTRIBUTED}::{kind}>", create)
        reference = f"ref_{owner[1:]}"
        self.statement(f"auto& {reference} = *{owner}")
        callee = op.name.removeprefix("ttnn.")
        self.result(op, f"{_DISTRIBUTED}::{callee}({self.operand(op)}, {reference})")


_SEVERAL: Mapping[str, Callable[[int], tuple[str, str]]] = {
    "vector": lambda _: (TENSORS, "{}[{}]"),
    "tuple": lambda count: (f"::std::tuple<{', '.join([TENSOR] * count)}>", "::std::get<{1}>({0})"),
    "optionals": lambda _: (f"::std::vector<::std::optional<{TENSOR}>>", "util_get_optional_value({}[{}])"),
}
"""By what a function of several results gives: its type, and how an element is taken."""
_SPECIAL: Mapping[str, Callable[[_Writer, Op], None]] = {
    "ttnn.get_device": _Writer.get_device,
    "ttnn.distribute_tensor": _Writer.distribute_tensor,
    "ttnn.aggregate_tensor": _Writer.aggregate_tensor,
}
"""The ops that print several statements."""

_OF_RESULT: Mapping[str, Callable[[Type], str]] = {
    "none": lambda _: NOTHING,
    "memory_config": values.memory_config,
    "compute_config": lambda _: values.COMPUTE_CONFIG,
    "dtype": lambda kind: values.data_type(kind.dtype),
    "layout": lambda kind: values.layout(kind.tile),
    "shape": lambda kind: values.attribute("shape", kind.shape),
}
"""Arguments that the type of the result implies."""


def mesh_shape(shape: Iterable[int]) -> str:
    """A mesh shape."""
    return f"{_DISTRIBUTED}::MeshShape({{{', '.join(map(str, shape))}}})"


def _config(rows: Sequence[str], override: MeshShape | None) -> str:
    tail = "" if override is None else f", {mesh_shape(override)}"
    return f"{{{', '.join(rows)}}}{tail}"


def mapper(config: MeshMapperConfig) -> str:
    """Returns the text between the braces of a mapper config."""
    owner = f"{_DISTRIBUTED}::MeshMapperConfig"
    kinds = (f"Shard{{{p.dim}}}" if isinstance(p, PlacementShard) else "Replicate{}" for p in config.placements)
    return _config([f"{owner}::Placement{{{owner}::{kind}}}" for kind in kinds], config.mesh_shape_override)


def composer(config: MeshComposerConfig) -> str:
    """Returns the text between the braces of a composer config."""
    return _config([str(d) for d in config.dims], config.mesh_shape_override)
