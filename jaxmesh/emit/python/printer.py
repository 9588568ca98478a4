"""Python text, one to one from a flat TTNN program, in the form of tt-mlir's EmitPy."""

from __future__ import annotations

import builtins
import keyword
import sys
from collections import Counter
from collections.abc import Sequence

from jaxmesh.dialects.program import LOOP, Op, Port, Program, Value
from jaxmesh.emit.languages import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.names import Variables, identifier, inputs_function
from jaxmesh.emit.python import calls as calls, values as values

_RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "arg", "main", "ttnn", "utils"})
ENDLESS_LOOP = "while utils.is_true("
"""The begin of a loop whose end only the devices know."""


def python_text(program: Program, *, constant_limit: int = CONSTANT_LIMIT) -> str:
    """Returns a Python file that runs the program with `ttnn` on inputs of ones."""
    return python_source(program, StoredConstants(program, constant_limit))[0]


def python_source(
    program: Program,
    constants: StoredConstants | None = None,
    *,
    load: bool = False,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    make_inputs: str | None = None,
) -> tuple[str, dict[int, str]]:
    """Returns a Python file that runs the program with `ttnn`, and a source for each line of an op or an argument.

    The source is the user's source location, or the argument's path.

    Args:
      program: a flat program of TTNN ops.
      constants: the constants that are loaded from `tensors/`; by default those above `CONSTANT_LIMIT`.
      load: True if `main` loads its inputs from `tensors/`, and `--check` compares with the results there;
        else its inputs are ones.
      exact: True if results must be equal bit for bit, as in a program that only moves data; else floats may differ by
        rounding.
      bits: for each result, the bits of the float type whose rounding is allowed; 0 for the result's type.
      make_inputs: how inputs are created by default, `"zeros"` or `"random"`, if they are not loaded.
    """
    module = _Module(program, constants or StoredConstants(program))
    parts = [["import ttnn", "import utils"], module.forward()]
    sources = {len(parts[0]) + number: line for number, line in module.places.items()}
    if program.arguments:
        parts[-1].append("")
        before = sum(map(len, parts))
        parts.append(module.inputs(load))
        sources |= {before + number: line for number, line in module.input_places.items()}
    parts[-1].append("")
    entry = ["if __name__ == '__main__':", "  raise SystemExit(main())" if load else "  main()"]
    parts += [[*module.main(load, exact, bits, make_inputs), ""], entry]
    return "\n".join(line for part in parts for line in part) + "\n", sources


def function_name(text: str) -> str:
    """Returns the name of the emitted function; `main` is taken by the file."""
    return "_main" if identifier(text) == "main" else identifier(text, _RESERVED)


class _Module:
    """One file: its functions share the counters of variables."""

    def __init__(self, program: Program, constants: StoredConstants) -> None:
        self.program = program
        self.constants = constants
        self.name = function_name(program.name)
        input_functions = [inputs_function(self.name, load) for load in (False, True)]
        self.variables = Variables((*_RESERVED, self.name, "_main", *input_functions))
        self.places: dict[int, str] = {}
        """Source locations by line number in the function; its `def` is line 1."""
        self.input_places: dict[int, str] = {}
        """Argument paths by line number in the function that returns the inputs."""
        self.bodies: list[tuple[str, Program]] = []
        """The functions of loops, by name."""

    def statement(self, body: list[str], callee: str, arguments: str) -> str:
        """Adds `<name> = <callee>(<arguments>)`; returns the name."""
        name = self.variables.fresh(callee)
        body.append(f"  {name} = {callee}({arguments})")
        return name

    # --- the function ---

    def forward(self) -> list[str]:
        lines = self.function(self.name, 0)
        outer = self.program, self.constants
        for name, body in self.bodies:
            self.program, self.constants = body, StoredConstants(body, sys.maxsize)
            lines += ["", *self.function(name, len(lines) + 1)]
        self.program, self.constants = outer
        return lines

    def function(self, name: str, offset: int) -> list[str]:
        program = self.program
        # How often ops and the return read each value.
        uses = Counter([*(v for op in program.ops for v in op.used), *(port.value for port in program.results)])
        body = [f"def {name}({'arg' if program.arguments else ''}): "]
        names: dict[Value, str] = {}
        self.elements(body, names, uses, "arg", [a.value for a in program.arguments])
        for op in program.ops:
            start = len(body)
            self.op(body, names, uses, op)
            if op.line:
                self.places.update(dict.fromkeys(range(offset + start + 1, offset + len(body) + 1), op.line))
        body.append(f"  return [{', '.join(names[r.value] for r in program.results)}]")
        return body

    def elements(
        self, body: list[str], names: dict[Value, str], uses: dict[Value, int], group: str, listed: Sequence[Value]
    ) -> None:
        """Names the elements of a list: a variable for each, or the subscript if it is used once."""
        for number, value in enumerate(listed):
            names[value] = f"{group}[{number}]"
            if uses.get(value, 0) > 1:
                variable = self.variables.take(f"{group}_{number}")
                body.append(f"  {variable} = {names[value]}")
                names[value] = variable

    def op(self, body: list[str], names: dict[Value, str], uses: dict[Value, int], op: Op) -> None:
        """Adds the statements of an op."""
        if op.name == LOOP:
            self.loop(body, names, uses, op)
            return
        file = self.constants.file(op)
        stored = None if file is None else calls.load_constant(self.program, op, names, file)
        statements = stored or calls.special(self.program, op, names)
        if statements is None:
            definition, signature = calls.signature_of(op)
            statements = [(signature.callee, calls.arguments(self.program, op, definition, signature.params, names))]
        if not op.results:
            body += [f"  {callee}({arguments})" for callee, arguments in statements]
            return
        result = ""
        for callee, arguments in statements:
            result = self.statement(body, callee, arguments.replace("{}", result) if result else arguments)
        if len(op.results) == 1:
            names[op.results[0]] = result
        else:
            self.elements(body, names, uses, result, op.results)

    def loop(self, body: list[str], names: dict[Value, str], uses: dict[Value, int], op: Op) -> None:
        """Adds a loop: a list of the states, which the function of its body replaces."""
        called: dict[str, str] = {}
        for kind in ("body", "condition"):
            if kind in op.attributes:
                called[kind] = self.variables.fresh(f"{self.name}_{kind}")
                self.bodies.append((called[kind], op.attributes[kind]))
        states, fixed = op.used[: len(op.results)], op.used[len(op.results) :]
        result = self.variables.fresh(f"{self.name}_states")
        body.append(f"  {result} = [{', '.join(names[v] for v in states)}]")
        given = f"[*{result}{''.join(f', {names[v]}' for v in fixed)}]"
        trips = op.attributes.get("trips")
        head = f"{ENDLESS_LOOP}{called.get('condition')}({given})[0])" if trips is None else f"for _ in range({trips})"
        body += [f"  {head}:", f"    {result} = {called['body']}({given})"]
        self.elements(body, names, uses, result, op.results)

    # --- its inputs ---

    def inputs(self, load: bool) -> list[str]:
        """Returns the function that creates the inputs, or loads them from `tensors/`."""
        body = [f"def {inputs_function(self.name, load)}(): "]
        device = "None"
        if any(self.on_mesh(argument, load) for argument in self.program.arguments):
            device = self.statement(body, *calls.device_call(tuple(self.program.mesh.values())))
        inputs: list[str] = []
        for number, argument in enumerate(self.program.arguments):
            made = self.loaded(body, device, number, argument) if load else self.ones(body, device, argument)
            inputs.append(made)
            self.input_places[len(body)] = _argument(number, argument.path)
        return [*body, f"  return [{', '.join(inputs)}]"]

    def on_mesh(self, port: Port, load: bool) -> bool:
        """Returns True if the creation of this input needs the mesh device."""
        return not self.program.types[port.value].host or (load and port.presharded)

    def ones(self, body: list[str], device: str, port: Port) -> str:
        tensor_type = self.program.types[port.value]
        arguments = {
            "shape": values.shape(tensor_type.shape),
            "dtype": values.data_type(tensor_type.dtype),
            "layout": values.layout(tensor_type),
            "device": "None" if tensor_type.host else device,
            "memory_config": values.memory_config(tensor_type),
        }
        return self.statement(body, "ttnn.ones", ", ".join(f"{k}={v}" for k, v in arguments.items()))

    def loaded(self, body: list[str], device: str, number: int, port: Port) -> str:
        where, file = device if self.on_mesh(port, load=True) else "None", f"tensors/arg{number}.npy"
        arguments = calls.load_arguments(file, self.program.types[port.value], where)
        return self.statement(body, f"utils.load_{'sharded_' if port.presharded else ''}tensor", arguments)

    # --- main ---

    def main(self, load: bool, exact: bool | Sequence[bool], bits: Sequence[int], make_inputs: str | None) -> list[str]:
        body = ["def main(): "]
        making = f'make_inputs="{make_inputs}"' if make_inputs else ""
        options = self.statement(body, "utils.arguments", making) if load else ""
        inputs = self.statement(body, inputs_function(self.name, load), "") if self.program.arguments else ""
        results = self.statement(body, self.name, inputs)
        if not load:
            return [*body, "  return 0"]
        each = [exact] * len(self.program.results) if isinstance(exact, bool) else exact
        bits = bits or [0] * len(each)
        wanted = [self.expected(body, i, r, each[i], bits[i]) for i, r in enumerate(self.program.results)]
        body.append(f"  return utils.report({results}, [{', '.join(wanted)}], {options})")
        return body

    def expected(self, body: list[str], number: int, port: Port, exact: bool, bits: int) -> str:
        dtype = values.data_type(self.program.types[port.value].dtype)
        arguments = f'"tensors/expected{number}.npy", {dtype}, sharded={port.presharded}, exact={exact}'
        if bits:
            arguments += f", bits={bits}"
        return self.statement(body, "utils.Expected", arguments)


def _argument(number: int, path: str) -> str:
    """Returns the argument of a call that an input is; the first step of its path selects positional or named
    arguments.

    >>> _argument(2, "[0][1]['up']"), _argument(3, "[1]['x']"), _argument(4, "")
    ("argument 2: args[1]['up']", "argument 3: kwargs['x']", 'argument 4')
    """
    for start, name in (("[0][", "args"), ("[1][", "kwargs")):
        if path.startswith(start):
            return f"argument {number}: {name}{path[3:]}"
    return f"argument {number}: {path}" if path else f"argument {number}"
