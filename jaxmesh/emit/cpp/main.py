"""The part of a C++ file around its program: the functions that return the inputs, and `main`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmesh.dialects.program import Port, Program
from jaxmesh.emit.cpp import values as values
from jaxmesh.emit.cpp.names import remark
from jaxmesh.emit.cpp.values import NOTHING, TENSOR, TENSORS

_DEVICE = "::std::optional<::std::reference_wrapper<::ttnn::distributed::MeshDevice>>"


def _inputs_name(name: str, load: bool) -> str:
    return f"{'load' if load else 'create'}_inputs_for_{name}"


def inputs_text(program: Program, name: str, load: bool) -> str:
    """Returns the function that creates or loads the inputs."""
    lines: list[str] = []
    device = NOTHING
    if any(not program.types[a.value].host for a in program.arguments):
        mesh = ", ".join(map(str, program.mesh.values()))
        shape = f"::ttnn::distributed::MeshShape({{{mesh}}})"
        lines.append(f"  ::ttnn::distributed::MeshDevice* v1 = ttnn::DeviceGetter::getInstance({shape});")
        lines.append(f"  {_DEVICE} v2 = *v1;")
        device = "v2"
    names: list[str] = []
    first = len(lines) + 1
    for i, argument in enumerate(program.arguments):
        tensor = _load(program, argument, i, device) if load else _ones(program, argument, device)
        names.append(f"v{first + i}")
        lines.append(f"  {TENSOR} {names[-1]} = {tensor};{remark(argument.path)}")
    lines.append(f"  {TENSORS} v{first + len(names)} = util_create_vec({', '.join(names)});")
    lines.append(f"  return v{first + len(names)};")
    return f"{TENSORS} {_inputs_name(name, load)}() {{\n" + "\n".join(lines) + "\n}\n"


def _placement(program: Program, argument: Port, device: str) -> list[str]:
    """Returns element type, layout, device and memory, as arguments of the calls that create tensors."""
    tensor_type = program.types[argument.value]
    layout, memory = values.layout(tensor_type.tile), values.memory_config(tensor_type)
    return [values.data_type(tensor_type.dtype), layout, NOTHING if tensor_type.host else device, memory]


def _ones(program: Program, argument: Port, device: str) -> str:
    shape = values.attribute("shape", program.types[argument.value].shape)
    return f"ttnn::ones({', '.join([shape, *_placement(program, argument, device)])})"


def _load(program: Program, argument: Port, number: int, device: str) -> str:
    dtype, layout, where, memory = _placement(program, argument, device)
    shape = list(program.types[argument.value].shape)
    if argument.presharded:
        # The file stacks the shards of all devices.
        shape = [math.prod(program.mesh.values()), *shape]
    text = values.attribute("shape", shape)
    return f'ttnn::load_tensor("tensors/arg{number}.npy", {text}, {layout}, {dtype}, {where}, {memory})'


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
    inputs = f"{TENSORS} v1 = ::{_inputs_name(name, load)}();"
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
        f"return ttnn::run_and_check(argc, argv, &::{_inputs_name(name, load)}, {run}, v1, {wanted});",
    ]
    if make_inputs is not None:
        lines.insert(0, f'ttnn::make_inputs("{make_inputs}");')
    return _function("int32_t main(int32_t argc, char** argv)", lines)


def _function(head: str, lines: Sequence[str]) -> str:
    return f"{head} {{\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n"
