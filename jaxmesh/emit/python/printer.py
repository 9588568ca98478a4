"""Python text, 1:1 from a flat TTNN program, in the form in which tt-mlir's EmitPy prints it."""

from __future__ import annotations

import builtins
import keyword
from collections import Counter
from collections.abc import Sequence

from jaxmesh.dialects.program import Op, Port, Program, Value
from jaxmesh.emit.constants import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.names import Variables, identifier, unique
from jaxmesh.emit.python import calls as calls, values as values

_RESERVED = frozenset({
    *keyword.kwlist, *keyword.softkwlist, *dir(builtins), "arg", "consteval", "main", "torch", "ttir_cpu", "ttnn",
    "utils",
})  # fmt: skip


def python_text(
    program: Program,
    *,
    load: bool = False,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    constant_limit: int = CONSTANT_LIMIT,
) -> str:
    """A Python file that runs the program with `ttnn`.

    Args:
      program: a flat program of TTNN ops.
      load: whether `main` loads its inputs from `tensors/`, takes `--check`, and compares with what is expected there;
        else its inputs are ones.
      exact: whether results must be equal bit for bit, as those of a program that only moves data; else floats may
        differ by rounding.
      bits: for each result those of the floats by whose rounding it may differ; 0 for its own type.
      constant_limit: the most elements of a constant that the text spells; others are loaded from `tensors/`.
    """
    constants = StoredConstants(program, constant_limit)
    return python_source(program, constants, load=load, exact=exact, bits=bits)[0]


def python_source(
    program: Program,
    constants: StoredConstants | None = None,
    *,
    load: bool = False,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    make_inputs: str | None = None,
) -> tuple[str, dict[int, str]]:
    """Returns the Python file of `python_text`, and of each line that an op or an argument has made the user's source
    line, or the argument's path.

    A program that loads its inputs makes them, unless it is told otherwise, as `make_inputs` says: `"zeros"` or
    `"random"`.
    """
    module = _Module(program, constants or StoredConstants(program))
    parts = [["import ttnn", "import utils"], module.forward()]
    places = {len(parts[0]) + number: line for number, line in module.places.items()}
    if program.arguments:
        parts[-1].append("")
        before = sum(map(len, parts))
        parts.append(module.inputs(load))
        places |= {before + number: line for number, line in module.input_places.items()}
    parts[-1].append("")
    entry = ["if __name__ == '__main__':", "  raise SystemExit(main())" if load else "  main()"]
    parts += [[*module.main(load, exact, bits, make_inputs), ""], entry]
    return "\n".join(line for part in parts for line in part) + "\n", places


def python_module(programs: Sequence[Program], *, target_module: bool = False) -> str:
    """Several flat TTNN programs as one Python file, which runs them one after the other on inputs of ones.

    With `target_module` it is a module to import: a function `forward` takes the inputs and the device.
    """
    modules: list[_Module] = []
    for program in programs:
        modules.append(_Module(program, StoredConstants(program), modules[-1] if modules else None))
    parts = [["import ttnn", "import utils"]]
    if target_module:
        parts += [[*module.forward(target_module=True), ""] for module in modules]
        return "\n".join(line for part in parts for line in part) + "\n"
    for module in modules:
        parts.append([*module.forward(), ""])
        if module.program.arguments:
            parts.append([*module.inputs(load=False), ""])
    calls = [line for module in modules for line in module.calls()]
    parts += [["def main(): ", *calls, "  return 0", ""], ["if __name__ == '__main__':", "  main()"]]
    return "\n".join(line for part in parts for line in part) + "\n"


def function_name(text: str) -> str:
    """The name of the emitted function: `main` is that of the file's own."""
    return "_main" if identifier(text) == "main" else identifier(text, _RESERVED)


class _Module:
    """One file: the functions share their counters of variables."""

    def __init__(self, program: Program, constants: StoredConstants, before: _Module | None = None) -> None:
        self.program = program
        self.constants = constants
        self.functions: set[str] = set() if before is None else before.functions
        self.name = unique(function_name(program.name), self.functions)
        self.functions.add(self.name)
        self.inputs_names = {load: f"{'load' if load else 'create'}_inputs_for_{self.name}" for load in (False, True)}
        taken = (*_RESERVED, self.name, "_main", *self.inputs_names.values())
        self.variables = Variables(taken, None if before is None else before.variables)
        self.devices: dict[Value, str] = {}
        """Devices that are arguments of the function, with their names."""
        self.places: dict[int, str] = {}
        """The source line of each line of the function that has one; its `def` is line 1."""
        self.input_places: dict[int, str] = {}
        """Likewise of the function that gives the inputs: their paths."""

    def statement(self, body: list[str], callee: str, arguments: str) -> str:
        """Adds `<name> = <callee>(<arguments>)`; gives the name."""
        name = self.variables.fresh(callee)
        body.append(f"  {name} = {callee}({arguments})")
        return name

    # --- the function itself ---

    def forward(self, *, target_module: bool = False) -> list[str]:
        program = self.program
        uses = _uses(program)
        row = "input" if target_module else "arg"
        body = [f"def {self.name}({row if program.arguments else ''}): "]
        names: dict[Value, str] = {}
        if target_module:
            body = [f"def {unique('forward', self.functions - {self.name})}({row}, device):"]
            self.devices = {v: "device" for op in program.ops if op.name == "ttnn.get_device" for v in op.results}
            names.update(self.devices)
        self.elements(body, names, uses, row, [a.value for a in program.arguments])
        for op in program.ops:
            start = len(body)
            self.op(body, names, uses, op)
            if op.line:
                self.places.update(dict.fromkeys(range(start + 1, len(body) + 1), op.line))
        body.append(f"  return [{', '.join(names[r.value] for r in program.results)}]")
        return body

    def elements(
        self, body: list[str], names: dict[Value, str], uses: dict[Value, int], row: str, found: Sequence[Value]
    ) -> None:
        """Names the elements of a list: a variable each, or the subscript itself where it is used once."""
        for number, value in enumerate(found):
            names[value] = f"{row}[{number}]"
            if uses.get(value, 0) > 1:
                variable = self.variables.take(f"{row}_{number}")
                body.append(f"  {variable} = {names[value]}")
                names[value] = variable

    def op(self, body: list[str], names: dict[Value, str], uses: dict[Value, int], op: Op) -> None:
        """Adds the statements of an op."""
        if self.devices.keys() & {*op.results}:
            return
        file = self.constants.file(op)
        stored = None if file is None else calls.load_constant(self.program, op, names, file)
        statements = stored or calls.special(self.program, op, names)
        if statements is None:
            row, signature = calls.signature_of(op)
            statements = [(signature.callee, calls.arguments(self.program, op, row, signature.params, names))]
        if not op.results:
            body += [f"  {callee}({arguments})" for callee, arguments in statements]
            return
        made = ""
        for callee, arguments in statements:
            made = self.statement(body, callee, arguments.replace("{}", made) if made else arguments)
        if len(op.results) == 1:
            names[op.results[0]] = made
        else:
            self.elements(body, names, uses, made, op.results)

    # --- its inputs ---

    def inputs(self, load: bool) -> list[str]:
        body = [f"def {self.inputs_names[load]}(): "]
        device = "None"
        if any(self.on_mesh(a, load) for a in self.program.arguments):
            device = self.statement(body, *calls.device_call(tuple(self.program.mesh.values()), self.program.ring))
        write = self.loaded if load else self.ones
        made: list[str] = []
        for number, argument in enumerate(self.program.arguments):
            made.append(write(body, device, number, argument))
            self.input_places[len(body)] = _argument(number, argument.path)
        body.append(f"  return [{', '.join(made)}]")
        return body

    def on_mesh(self, port: Port, load: bool) -> bool:
        """Returns True if making this input takes the mesh device."""
        return not self.program.types[port.value].host or (load and port.presharded)

    def ones(self, body: list[str], device: str, _: int, port: Port) -> str:
        kind = self.program.types[port.value]
        arguments = {
            "shape": values.shape(kind.shape),
            "dtype": values.data_type(kind.dtype),
            "layout": values.layout(kind),
            "device": "None" if kind.host else device,
            "memory_config": values.memory_config(kind),
        }
        return self.statement(body, "ttnn.ones", ", ".join(f"{k}={v}" for k, v in arguments.items()))

    def loaded(self, body: list[str], device: str, number: int, port: Port) -> str:
        kind = self.program.types[port.value]
        arguments = [f'"tensors/arg{number}.npy"', values.layout(kind), values.data_type(kind.dtype)]
        arguments += [device if self.on_mesh(port, load=True) else "None", values.memory_config(kind)]
        arguments.append(f"shape={values.shape(kind.shape)}")
        return self.statement(body, f"utils.load_{'sharded_' if port.presharded else ''}tensor", ", ".join(arguments))

    # --- main ---

    def calls(self) -> list[str]:
        """The lines that run the program on inputs of ones."""
        body: list[str] = []
        inputs = self.statement(body, self.inputs_names[False], "") if self.program.arguments else ""
        self.statement(body, self.name, inputs)
        return body

    def main(self, load: bool, exact: bool | Sequence[bool], bits: Sequence[int], make_inputs: str | None) -> list[str]:
        body = ["def main(): "]
        making = f'make_inputs="{make_inputs}"' if make_inputs else ""
        asked = self.statement(body, "utils.arguments", making) if load else ""
        inputs = self.statement(body, self.inputs_names[load], "") if self.program.arguments else ""
        results = self.statement(body, self.name, inputs)
        if not load:
            return [*body, "  return 0"]
        each = [exact] * len(self.program.results) if isinstance(exact, bool) else exact
        bits = bits or [0] * len(each)
        wanted = [self.expected(body, i, r, each[i], bits[i]) for i, r in enumerate(self.program.results)]
        body.append(f"  return utils.report({results}, [{', '.join(wanted)}], {asked})")
        return body

    def expected(self, body: list[str], number: int, port: Port, exact: bool, bits: int) -> str:
        dtype = values.data_type(self.program.types[port.value].dtype)
        arguments = f'"tensors/expected{number}.npy", {dtype}, sharded={port.presharded}, exact={exact}'
        if bits:
            arguments += f", bits={bits}"
        return self.statement(body, "utils.Expected", arguments)


def _argument(number: int, path: str) -> str:
    """Returns which argument of a call an input is: of the path, the first step is the positional or the named ones.

    >>> _argument(2, "[0][1]['up']"), _argument(3, "[1]['x']"), _argument(4, "")
    ("argument 2: args[1]['up']", "argument 3: kwargs['x']", 'argument 4')
    """
    for start, name in (("[0][", "args"), ("[1][", "kwargs")):
        if path.startswith(start):
            return f"argument {number}: {name}{path[3:]}"
    return f"argument {number}: {path}" if path else f"argument {number}"


def _uses(program: Program) -> dict[Value, int]:
    """Returns how often each value is read, by ops and by the return."""
    read = (value for op in program.ops for value in op.used)
    return Counter([*read, *(port.value for port in program.results)])
