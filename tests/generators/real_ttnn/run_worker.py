"""Runs in the real library's Python, without jaxmesh: executes programs, and holds every tensor to its declared form.

`python run_worker.py programs.jsonl answers.jsonl FIRST`. A program is `{"text", "types"}`: the printed Python, and by
variable the element type, layout, shape and memory that the flat program says. The exit code is 3 if the next program
needs another mesh device, which takes a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path

try:
    import ttnn
except ImportError:
    ttnn = None

STAND_INS = {"BOOL": "BFLOAT16", "FLOAT16": "FLOAT32", "FLOAT64": "FLOAT32", "INT64": "INT32"}
OTHER_DEVICE = 3
CLUSTER = (2, 4)
"""The mesh of a T3000; smaller ones are parts of it."""


class DeviceGetter:
    """Stands for that of the exported `utils.py`."""

    base = None
    device = None
    parts: dict = {}  # noqa: RUF012

    @classmethod
    def get_device(cls, mesh_shape, fabric_config=None):
        """Returns the device of a mesh shape."""
        shape = tuple(mesh_shape)
        base = CLUSTER if shape[0] <= CLUSTER[0] and shape[1] <= CLUSTER[1] else shape
        if cls.base not in (None, base):
            os._exit(OTHER_DEVICE)
        if cls.device is None:
            ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
            cls.device, cls.base = ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(*base), l1_small_size=65536), base
        if shape == base:
            return cls.device
        if shape not in cls.parts:
            cls.parts[shape] = cls.device.create_submesh(ttnn.MeshShape(*shape))
        return cls.parts[shape]


def load_constant(path, layout, dtype, device, memory_config, shape):
    """Stands for that of the exported `utils.py`: a constant of this form, whatever its values."""
    return ttnn.zeros(shape, dtype=dtype, layout=layout, device=device, memory_config=memory_config)


def checked(text):
    """Returns the text with a check after every statement of the program itself."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("def "):
            inside = not re.match(r"def (create_inputs_for_|main\()", line)
        name = re.match(r"  (\w+) = ", line)
        lines.append(f"{line}; _check({name[1]!r}, {name[1]})" if inside and name else line)
    return "\n".join(lines)


def checker(declared):
    """Returns the function that compares tensors with what is declared for them."""

    def check(name, value):
        several = isinstance(value, (list, tuple))
        for number, tensor in enumerate(value if several else [value]):
            wanted = declared.get(f"{name}[{number}]" if several else name)
            if wanted is not None:
                found = [tensor.dtype.name, tensor.layout.name, list(tensor.shape)]
                assert found == wanted, f"{name}: the program has {wanted}, the library gives {found}"

    return check


def run(program):
    """Runs one program on inputs of ones."""
    names = {"__name__": "generated", "_check": checker(program["types"])}
    exec(compile(checked(program["text"]), "main.py", "exec"), names)
    inputs = next((n for n in names if n.startswith("create_inputs_for_")), None)
    if inputs is not None:
        names[inputs.removeprefix("create_inputs_for_")](names[inputs]())
    else:
        names["main"]()


def reason(error):
    """The rule that was broken."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    found = re.search(r"info:\s*(.*?)\s*(?:backtrace|$)", text, re.DOTALL)
    return f"{type(error).__name__}: {' '.join((found[1] if found else text).split())[:400]}"


def main(source, target, first):
    """Runs the programs from the first on."""
    for name, other in STAND_INS.items():
        if not hasattr(ttnn.DataType, name):
            setattr(ttnn.DataType, name, getattr(ttnn.DataType, other))
    sys.modules["utils"] = types.SimpleNamespace(DeviceGetter=DeviceGetter, load_constant=load_constant)
    programs = [json.loads(line) for line in Path(source).read_text().splitlines()]
    with Path(target).open("a") as out:
        for program in programs[int(first) :]:
            try:
                run(program)
                answer = ""
            except Exception as error:
                answer = reason(error)
            out.write(json.dumps(answer) + "\n")
            out.flush()
    # Closing a mock device takes longer than ending.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
