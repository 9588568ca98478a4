"""Python text, 1:1 from a flat TTNN program, in the form in which tt-mlir's EmitPy prints it."""

from __future__ import annotations

import builtins
import keyword
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxmesh.dialects.program import HOST_CALL, LOAD_CACHED, WEIGHTS, Op, Port, Program, Value
from jaxmesh.emit.constants import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.names import Variables, identifier, unique
from jaxmesh.emit.python import calls as calls, values as values
from jaxmesh.emit.python.host_functions import host_function

_ROWS = ("inputs", "activations", "weights")
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


def python_module(
    programs: Sequence[Program], *, target_module: bool = False, split_files: bool = False, load: str = ""
) -> str:
    """Several flat TTNN programs as one Python file, which runs them one after the other.

    Args:
      programs: their arguments come as one list, or where the role of each is known as activations and weights.
      target_module: makes a module to import: a function `forward` takes the inputs and the device.
      split_files: whether the functions that are called once are in a second file; each file then has its name before.
      load: the start of the names of the files that inputs are loaded from; without it they are ones.
    """
    modules: list[_Module] = []
    for program in programs:
        splits = not target_module and all(a.role for a in program.arguments)
        before = modules[-1] if modules else None
        modules.append(_Module(program, StoredConstants(program), before, target_module, splits))
    cached = [module for module in modules if module.inner]
    split_files = split_files and bool(cached)
    head = ["import ttnn", "import utils"]
    if any(inner.hosted() for module in cached for inner in module.inner):
        head += ["import torch", "import ttir_cpu"]
    lines = head
    if split_files:
        lines = ['# File: "main"', *head[:2], *(f"from consteval import {module.wrapper}" for module in cached)]
    for module in modules:
        once = module in cached
        lines += [*([] if split_files else module.once()), *([f"{module.cache} = {{}}"] if once else [])]
        lines += [*module.forward(), "", *(module.wrapped() if once and not split_files else [])]
        if module.program.arguments and not target_module:
            lines += [*module.inputs(load), ""]
    if not target_module:
        calls = [line for module in modules for line in module.calls(load)]
        lines += ["def main(): ", *calls, "  return 0", "", "if __name__ == '__main__':", "  main()"]
    if split_files:
        lines += ["", '# File: "consteval"', *head]
        lines += [line for module in cached for line in (*module.once(), *module.wrapped())]
    return "\n".join(lines) + "\n"


def function_name(text: str) -> str:
    """The name of the emitted function: `main` is that of the file's own."""
    return "_main" if identifier(text) == "main" else identifier(text, _RESERVED)


class _Module:
    """One file: the functions share their counters of variables."""

    def __init__(
        self,
        program: Program,
        constants: StoredConstants,
        before: _Module | None = None,
        target_module: bool = False,
        splits: bool = False,
    ) -> None:
        self.program = program
        self.constants = constants
        self.target_module = target_module
        self.splits = splits
        """Whether the arguments come as activations and weights."""
        self.entry = True
        self.functions: set[str] = set() if before is None else before.functions
        self.name = unique(function_name(program.name), self.functions)
        self.functions.add(self.name)
        self.cache, self.wrapper = f"ce_cache_{self.name}", f"consteval_{self.name}"
        made = [f"{verb}_{row}_for_{self.name}" for verb in ("create", "load") for row in _ROWS]
        taken = (*_RESERVED, self.name, "_main", self.cache, self.wrapper, *made)
        self.variables = Variables(taken, None if before is None else before.variables)
        self.inner = [_Module(function, constants, self, target_module) for function in program.functions()]
        """Those of the functions that are called once."""
        for module in self.inner:
            module.entry = False
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

    def rows(self) -> dict[str, dict[Value, str]]:
        """The parameters of the function: by their names, the arguments that are in each, by their subscripts."""
        arguments = self.program.arguments
        if not self.splits:
            row = "input" if self.target_module else "arg"
            listed = {a.value: f"{row}[{i}]" for i, a in enumerate(arguments)}
            return {row: listed} if listed or self.target_module else {}
        weights = [a.value for a in arguments if a.role in WEIGHTS]
        others = [a.value for a in arguments if a.role not in WEIGHTS]
        rows = {
            "activations": {v: f"activations[{i}]" for i, v in enumerate(others)},
            "weights": {v: f'weights["weight_{i}"]' for i, v in enumerate(weights)},
        }
        return {name: row for name, row in rows.items() if row}

    def head(self, name: str, parameters: Sequence[str]) -> str:
        device = ["device"] if self.target_module else []
        return f"def {name}({', '.join([*parameters, *device])}):{'' if self.target_module else ' '}"

    def forward(self) -> list[str]:
        program = self.program
        uses = _uses(program)
        rows = self.rows()
        # A function that is called once keeps its name.
        entry = self.target_module and self.entry
        body = [self.head(unique("forward", self.functions - {self.name}) if entry else self.name, [*rows])]
        names: dict[Value, str] = {}
        if self.target_module:
            self.devices = {v: "device" for op in program.ops if op.name == "ttnn.get_device" for v in op.results}
            names.update(self.devices)
        if self.inner:
            given = ", ".join([self.cache, *self.wrapped_rows(), *(["device"] if self.target_module else [])])
            body += [f"  global {self.cache}", f"  {self.cache} = {self.wrapper}({given})"]
        for row, listed in rows.items():
            self.elements(body, names, uses, row, listed)
        for op in program.ops:
            start = len(body)
            self.op(body, names, uses, op)
            if op.line:
                self.places.update(dict.fromkeys(range(start + 1, len(body) + 1), op.line))
        body.append(f"  return [{', '.join(names[r.value] for r in program.results)}]")
        return body

    def elements(
        self, body: list[str], names: dict[Value, str], uses: dict[Value, int], row: str, found: Mapping[Value, str]
    ) -> None:
        """Names elements: a variable each, or the subscript itself where it is used once."""
        for number, (value, text) in enumerate(found.items()):
            names[value] = text
            if uses.get(value, 0) > 1:
                variable = self.variables.take(f"{row}_{number}")
                body.append(f"  {variable} = {names[value]}")
                names[value] = variable

    def op(self, body: list[str], names: dict[Value, str], uses: dict[Value, int], op: Op) -> None:
        """Adds the statements of an op."""
        if self.devices.keys() & {*op.results}:
            return
        if op.name == LOAD_CACHED:
            key = next(i.name for i in self.inner if i.program is op.attributes["function"])
            found = {v: f'{self.cache}["{key}"][{i}]' for i, v in enumerate(op.results)}
            self.elements(body, names, uses, key, found)
            return
        if op.name == HOST_CALL:
            made = self.statement(body, op.attributes["callee"], ", ".join(names[v] for v in op.used))
            several = len(op.results) > 1
            names.update((v, f"{made}[{i}]" if several else made) for i, v in enumerate(op.results))
            return
        file = self.constants.file(op)
        stored = None if file is None else calls.load_constant(self.program, op, names, file)
        statements = stored or calls.special(self.program, op, names)
        if statements is None:
            definition, call = calls.signature_of(op)
            statements = [(call.callee, calls.arguments(self.program, op, definition, call.params, names))]
        if not op.results:
            body += [f"  {callee}({arguments})" for callee, arguments in statements]
            return
        made = ""
        for callee, arguments in statements:
            made = self.statement(body, callee, arguments.replace("{}", made) if made else arguments)
        if len(op.results) == 1:
            names[op.results[0]] = made
        else:
            self.elements(body, names, uses, made, {v: f"{made}[{i}]" for i, v in enumerate(op.results)})

    # --- the functions that it calls once ---

    def once(self) -> list[str]:
        return [line for inner in self.inner for line in (*inner.hosted(), *inner.forward(), "")]

    def hosted(self) -> list[str]:
        """The functions that run on the host's processor."""
        return [line for op in self.program.ops if op.name == HOST_CALL for line in (*host_function(op), "")]

    def wrapped_rows(self) -> dict[str, dict[Value, str]]:
        """The parameters that the functions that are called once may read."""
        return {name: row for name, row in self.rows().items() if not self.splits or name == "weights"}

    def wrapped(self) -> list[str]:
        """The function that calls them the first time and keeps their results."""
        rows = self.wrapped_rows()
        names = {v: text for row in rows.values() for v, text in row.items()}
        body = [self.head(self.wrapper, ["ce_cache", *rows]), "  if not ce_cache:"]
        calls = [op for op in self.program.ops if op.name == LOAD_CACHED]
        for op, inner in zip(calls, self.inner, strict=True):
            listed = [f"[{', '.join(names[v] for v in op.used)}]"] if inner.rows() else []
            given = ", ".join([*listed, *(["device"] if self.target_module else [])])
            made = self.variables.fresh(inner.name)
            body += [f"    {made} = {inner.name}({given})", f'    ce_cache["{inner.name}"] = {made}']
        return [*body, "  return ce_cache", ""]

    # --- its inputs ---

    def inputs_name(self, load: bool, row: str = "inputs") -> str:
        return f"{'load' if load else 'create'}_{row}_for_{self.name}"

    def inputs(self, load: str | bool) -> list[str]:
        """The functions that make the inputs, or load them from files whose names start so, or from `tensors/`."""
        lines: list[str] = []
        arguments = {a.value: (number, a) for number, a in enumerate(self.program.arguments)}
        for row, listed in self.rows().items():
            body = [f"def {self.inputs_name(bool(load), row if self.splits else 'inputs')}(): "]
            device = "None"
            if any(self.on_mesh(arguments[v][1], bool(load)) for v in listed):
                device = self.statement(body, *calls.device_call(tuple(self.program.mesh.values()), self.program.ring))
            made: list[str] = []
            for value in listed:
                number, argument = arguments[value]
                made.append(self.input(body, device, number, argument, load))
                self.input_places[len(lines) + len(body)] = _argument(number, argument.path)
            named = ", ".join(f'"weight_{i}": {name}' for i, name in enumerate(made))
            body.append(f"  return {{{named}}}" if row == "weights" else f"  return [{', '.join(made)}]")
            lines += [*([""] if lines else []), *body]
        return lines

    def input(self, body: list[str], device: str, number: int, port: Port, load: str | bool) -> str:
        if not load:
            return self.ones(body, device, port)
        return (
            self.loaded(body, device, number, port)
            if load is True
            else self.read(body, device, f"{load}{number}", port)
        )

    def on_mesh(self, port: Port, load: bool) -> bool:
        """Returns True if making this input takes the mesh device."""
        return not self.program.types[port.value].host or (load and port.presharded)

    def ones(self, body: list[str], device: str, port: Port) -> str:
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

    def read(self, body: list[str], device: str, name: str, port: Port) -> str:
        """Loads a file of ttnn."""
        kind = self.program.types[port.value]
        arguments = [f'"{name}.tensorbin"', values.layout(kind), values.data_type(kind.dtype)]
        arguments += ["None" if kind.host else device, values.memory_config(kind)]
        return self.statement(body, "utils.load_tensor", ", ".join(arguments))

    # --- main ---

    def calls(self, load: str) -> list[str]:
        """The lines that run the program on inputs that are made or loaded."""
        body: list[str] = []
        rows = [row if self.splits else "inputs" for row in self.rows()]
        inputs = [self.statement(body, self.inputs_name(bool(load), row), "") for row in rows]
        self.statement(body, self.name, ", ".join(inputs))
        return body

    def main(self, load: bool, exact: bool | Sequence[bool], bits: Sequence[int], make_inputs: str | None) -> list[str]:
        body = ["def main(): "]
        making = f'make_inputs="{make_inputs}"' if make_inputs else ""
        asked = self.statement(body, "utils.arguments", making) if load else ""
        inputs = self.statement(body, self.inputs_name(load), "") if self.program.arguments else ""
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
