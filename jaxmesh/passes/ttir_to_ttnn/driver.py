"""The pass from a flat program of TTIR's compute ops to a flat TTNN program.

The input has `ttir.*` ops and TTNN's two transfers; the output has `ttnn.*` ops only. Every tensor on the devices is
in tiles: `passes/layouts` decides the layouts, `passes/memory.py` adds copies and deallocations.

A value of the input is a full host tensor, or the shards of all devices: in host memory, on the devices, or both. Only
the program's own transfers lead from one to the other. Shards are moved once to the memory where an op needs them.
Tensors made from nothing, and those in another shape only, are made where they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmesh.dialects.attributes import Attributes
from jaxmesh.dialects.definitions import definition_of, has_trait
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.program import LOOP, Op, Port, Program, Type, Value, without_dead
from jaxmesh.errors import MissingRuleError, ResidencyError
from jaxmesh.passes.ttir_to_ttnn import collectives, elementwise, images, indexing, reductions, shapes, textual
from jaxmesh.passes.ttir_to_ttnn.builder import Ops, Pattern, Site
from jaxmesh.passes.ttir_to_ttnn.shapes import RENAMED, carry_over, create, has_host_form, is_created

_FILES = (collectives, elementwise, images, indexing, reductions, shapes, textual)
PATTERNS: Mapping[str, Pattern] = {name: pattern for file in _FILES for name, pattern in file.PATTERNS.items()}
"""By the name of the TTIR op, without the dialect."""


def to_ttnn(program: Program) -> Program:
    """Returns the flat TTNN program of a flat program of TTIR's compute ops and TTNN's two transfers.

    Raises:
      MissingRuleError: an op that TTNN has no definition and this pass no rule for.
      ResidencyError: a transfer is missing: an op reads a full host tensor, or shards stand where one is needed.
    """
    lowering = _Lowering(program)
    for op in program.ops:
        lowering.op(op)
    return without_dead(lowering.finish())


@dataclass(slots=True)
class _Copies:
    """The copies of a value that exist, or what makes one.

    Attributes:
      full: as a full host tensor.
      host: as a host tensor of shards.
      device: on the devices.
      made: what makes it, where it comes from nothing.
      reshaped: the value that it is in another shape, and the type that it has.
    """

    full: Value | None = None
    host: Value | None = None
    device: Value | None = None
    made: Site | None = None
    reshaped: tuple[Value, Type] | None = None
    line: str = ""


class _Lowering:
    def __init__(self, program: Program) -> None:
        self.source = program
        self.ops = Ops(Program(program.name, dict(program.mesh), public=program.public))
        self.copies: dict[Value, _Copies] = {}
        for port in program.arguments:
            kind = program.types[port.value]
            value = self.ops.program.new(replace(kind, host=not port.presharded, tile=port.presharded))
            self.ops.program.arguments.append(replace(port, value=value))
            self.copies[port.value] = _Copies(device=value) if port.presharded else _Copies(full=value)

    def finish(self) -> Program:
        """Returns the program, with its results and the mesh device."""
        self.ops.line = ""
        made = self.ops.program
        made.results = [Port(self.result(r), r.presharded, r.path) for r in self.source.results]
        if any(made.types[v].kind == "device" for op in made.ops for v in op.used):
            made.ops.insert(0, Op("ttnn.get_device", (), (self.ops.handle,), {"mesh_shape": self.ops.mesh}))
        return made

    def result(self, port: Port) -> Value:
        """Returns a result with the residency of its port."""
        if not port.presharded:
            return self.full(port.value)
        copies = self.copies[port.value]
        base = copies if copies.reshaped is None else self.copies[copies.reshaped[0]]
        # A value that was only distributed stays on the host.
        stays = copies.device is None and base.device is None and base.host is not None
        return self.shards(port.value) if stays else self.device(port.value)

    # --- a value on the host, as shards, or on the devices; a reshape uses its source's copies ---

    def full(self, value: Value) -> Value:
        """Returns a value as a full host tensor."""
        copies = self.copies[value]
        if copies.full is not None:
            return copies.full
        line, self.ops.line = self.ops.line, copies.line or self.ops.line
        base = None if copies.reshaped is None else self.copies[copies.reshaped[0]]
        if copies.made is not None and has_host_form(copies.made):
            copies.full = create(self.ops, copies.made, host=True)
        elif copies.reshaped is not None and base is not None and (base.full is not None or base.made is not None):
            copies.full = self._reshape(self.full(copies.reshaped[0]), copies.reshaped[1])
        else:
            raise ResidencyError(
                f"a full host tensor is needed, but {self._show(value)} is a tensor of shards; "
                "ttnn.aggregate_tensor (shard_to_full in the program) brings it to the host."
            )
        self.ops.line = line
        return copies.full

    def shards(self, value: Value) -> Value:
        """Returns a value as a host tensor of what each device has."""
        copies = self.copies[value]
        if copies.host is not None:
            return copies.host
        if copies.reshaped is not None and self.copies[copies.reshaped[0]].host is not None:
            copies.host = self._reshape(self.shards(copies.reshaped[0]), copies.reshaped[1])
            return copies.host
        held = self.device(value)
        kind = replace(self.ops.program.types[held], tile=False)
        (rows,) = self.ops.emit("to_layout", [held], [kind], {"layout": "row_major"})
        (copies.host,) = self.ops.emit("from_device", [rows], [replace(kind, host=True)], {})
        return copies.host

    def device(self, value: Value) -> Value:
        """Returns a value on the devices."""
        copies = self.copies[value]
        if copies.device is not None:
            return copies.device
        line, self.ops.line = self.ops.line, copies.line or self.ops.line
        base = None if copies.reshaped is None else self.copies[copies.reshaped[0]]
        if copies.made is not None:
            copies.device = create(self.ops, copies.made, host=False)
        elif copies.reshaped is not None and base is not None and (base.device is not None or base.made is not None):
            copies.device = self._reshape(self.device(copies.reshaped[0]), copies.reshaped[1])
        elif copies.host is not None or (base is not None and base.host is not None):
            copies.device = self._move_to_device(self.shards(value))
        else:
            raise ResidencyError(
                f"an op needs {self._show(value)} on the devices, which is a full host tensor; ttnn.distribute_tensor "
                "(full_to_shard in the program) brings it there."
            )
        self.ops.line = line
        return copies.device

    def _move_to_device(self, host: Value) -> Value:
        kind = replace(self.ops.program.types[host], host=False, tile=False)
        (there,) = self.ops.emit("to_device", [host, self.ops.handle], [kind], {})
        return self.ops.emit("to_layout", [there], [replace(kind, tile=True)], {"layout": "tile"})[0]

    def _transfer(self, name: str, operand: Value, config: Attributes, kind: Type) -> Value:
        result = replace(kind, host=True, tile=False)
        return self.ops.emit(name, [operand, self.ops.handle], [result], config)[0]

    def _reshape(self, x: Value, kind: Type) -> Value:
        """Returns a tensor in another shape, in the same memory."""
        held = self.ops.program.types[x]
        if held.shape == kind.shape:
            return x
        return self.ops.emit("reshape", [x], [replace(held, shape=kind.shape)], {"shape": kind.shape})[0]

    def _type(self, value: Value) -> Type:
        return self.source.types[value]

    def _show(self, value: Value) -> str:
        kind = self._type(value)
        return f"{kind.dtype}{list(kind.shape)}" + (f" of {self.ops.line}" if self.ops.line else "")

    # --- one op ---

    def op(self, op: Op) -> None:
        """Lowers one op."""
        self.ops.line = op.line
        if self._is_empty(op) and op.name != "ttnn.aggregate_tensor":
            for result in op.results:
                zeros = Op("ttir.zeros", (), (result,), {"shape": self._type(result).shape}, op.line)
                self._create(zeros, Site(zeros, (), (self._type(result),)))
        elif op.name == "ttnn.distribute_tensor":
            made = self._transfer("distribute_tensor", self.full(_first(op)), op.attributes, self._type(op.results[0]))
            self.copies[op.results[0]] = _Copies(host=made)
        elif op.name == "ttnn.aggregate_tensor":
            found = self.shards(_first(op))
            made = self._transfer("aggregate_tensor", found, op.attributes, self._type(op.results[0]))
            self.copies[op.results[0]] = _Copies(full=made)
        elif op.name == LOOP:
            self._loop(op)
        elif op.name.startswith("ttir.") and has_trait(op.name, Trait.VIEW):
            self._reshape_op(op)
        elif op.name.startswith("ttnn.") and definition_of(op.name) is not None:
            self._keep_op(op)
        else:
            self._compute(op)

    def _loop(self, op: Op) -> None:
        """Keeps a loop: its operands and results are on the devices."""
        made = self.ops.program
        operands = tuple([self.device(v) for v in op.used])
        results = tuple([made.new(self.ops.tensor_type(k.shape, k.dtype)) for k in map(self._type, op.results)])
        made.ops.append(replace(op, operands=operands, results=results))
        self.copies.update((v, _Copies(device=new)) for v, new in zip(op.results, results, strict=True))

    def _is_empty(self, op: Op) -> bool:
        """Returns True for results without elements, which the library refuses to distribute and often to compute."""
        return bool(op.results) and all(0 in self._type(r).shape for r in op.results)

    def _reshape_op(self, op: Op) -> None:
        base, kind = _first(op), self._type(op.results[0])
        above = self.copies[base]
        if above.reshaped is not None:
            # One reshape is as good as two.
            base = above.reshaped[0]
        self.copies[op.results[0]] = _Copies(reshaped=(base, kind), line=op.line)

    def _compute(self, op: Op) -> None:
        results = tuple([self.source.types[v] for v in op.results])
        if has_trait(op.name, Trait.CREATES) and is_created(site := Site(op, (), results)):
            self._create(op, site)
            return
        pattern = self._pattern(op)
        if pattern is None:
            raise MissingRuleError(
                f"the pass to flat TTNN has no rule for {op.name} ({op.line or 'unknown line'}), and TTNN no "
                "definition; add one in jaxmesh/dialects/ttnn/*.py, or a rule in jaxmesh/passes/ttir_to_ttnn/*.py."
            )
        operands = tuple([None if v is None else self.device(v) for v in _operands_by_position(op)])
        made = pattern(self.ops, Site(op, operands, results))
        values = (made,) if isinstance(made, int) else tuple(made)
        for result, value in zip(op.results, values, strict=True):
            self.copies[result] = _Copies(device=value)

    def _pattern(self, op: Op) -> Pattern | None:
        """Returns the pattern of a TTIR op, `carry_over` if TTNN has the same op, or None."""
        dialect, _, name = op.name.partition(".")
        if dialect != "ttir" or definition_of(op.name) is None or name == "mesh_shard":
            return None
        return PATTERNS.get(name) or (carry_over if definition_of(f"ttnn.{RENAMED.get(name, name)}") else None)

    def _keep_op(self, op: Op) -> None:
        """Keeps an op of TTNN."""
        operands = [None if v is None else self.device(v) for v in _operands_by_position(op)]
        definition = definition_of(op.name)
        if definition is not None and definition.handles[1]:
            missing = (definition.operands[1] or 0) - len(operands)
            operands += [*[None] * missing, self.ops.handle]
        kinds = [self.ops.tensor_type(k.shape, k.dtype) for k in map(self._type, op.results)]
        for result, value in zip(op.results, self.ops.emit(op.name[5:], operands, kinds, op.attributes), strict=True):
            self.copies[result] = _Copies(device=value)

    def _create(self, op: Op, site: Site) -> None:
        if site.name == "get_dimension_size":
            dim: int = site["dimension"]
            size = self._type(_first(op)).shape[dim]
            full = Op("ttir.full", (), op.results, {"fill_value": size}, op.line)
            site = Site(full, (), site.results)
        self.copies[op.results[0]] = _Copies(made=site, line=op.line)


def _first(op: Op) -> Value:
    value = op.operands[0]
    assert value is not None
    return value


def _operands_by_position(op: Op) -> Sequence[Value | None]:
    """Returns the operands by position; `operandSegmentSizes` may say which are left out."""
    sizes = op.attributes.get("operandSegmentSizes")
    if sizes is None or None in op.operands or len(sizes) == len(op.operands) or max(sizes, default=0) > 1:
        return op.operands
    rest = iter(op.operands)
    return [next(rest, None) if n else None for n in sizes]
