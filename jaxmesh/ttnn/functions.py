"""Functions for the ops of TTNN: each row of the table is callable under the name of its Python call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.errors import ArgumentTypeError, UnsupportedError, VerifyError
from jaxmesh.ttnn.argument_conversion import convert_argument, integers, write_result
from jaxmesh.ttnn.assemble import owner_of, set_owner
from jaxmesh.ttnn.call_arguments import Binder, argument_key
from jaxmesh.ttnn.defaults import COMPLETE
from jaxmesh.ttnn.device import MeshDevice, mesh_of
from jaxmesh.ttnn.execute import StaticArguments, perform
from jaxmesh.ttnn.host_tensor import Tensor, array_of, wrap_array
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.signatures import ACTIVATIONS, HOW, IGNORED, IGNORED_BY_COLLECTIVES, OUTPUTS, doc_of, signature_of
from jaxmesh.ttnn.types import DRAM_MEMORY_CONFIG, ON_DEVICE, Layout, MemoryConfig, Storage, StorageType, as_dtype
from jaxmesh.validate import quote

_IMPLIED: Mapping[str, Any] = {"reduce_type": "sum"}
"""Attributes without an argument in the Python call, and their values."""

_LIMIT = 1024
"""The most calls of an op whose converted arguments are kept."""


class Function:
    """One op, callable as in `ttnn`; its signature, conversions and meaning come from its row."""

    def __init__(self, entry: TtnnOp) -> None:
        self.entry = entry
        self.callee = entry.python.callee
        self.__name__ = self.callee.rsplit(".", 1)[-1]
        self.__qualname__ = self.callee.removeprefix("ttnn.")
        self.__module__ = "jaxmesh.ttnn"
        params, row = entry.python.params, entry.definition
        # Ops without operands take every argument by position, although their calls are printed with names.
        self.__signature__ = signature_of(params, by_place=entry.on_device and row.operands == (0, 0))
        self.__doc__ = doc_of(entry, self.__signature__)
        slots = {p.name: i for i, p in enumerate(params)}
        ignored = IGNORED | IGNORED_BY_COLLECTIVES if "cluster_axis" in slots else IGNORED
        into = OUTPUTS if row.results == (1, 1) and (entry.on_device or row.operands != (0, 0)) else ()
        extra = {**dict.fromkeys(sorted(ignored), len(params)), **dict.fromkeys(into, len(params) + 1)}
        self._output = len(params) + 1
        self._binder = Binder(self.callee, self.__signature__, extra, self._output + 1)
        self._operands = sorted((int(p.key), i) for i, p in enumerate(params) if p.source == "operand")
        self._index_operands = {n for n, i in self._operands if params[i].name.endswith("index")}
        self._operand_list = next((i for i, p in enumerate(params) if p.source == "operands"), None)
        known = row.by_name
        self._attributes = [(i, known[str(p.key)], p) for i, p in enumerate(params) if p.source == "attribute"]
        given = {a.name for _, a, _ in self._attributes}
        self._implied = tuple((k, v) for k, v in _IMPLIED.items() if k in known and k not in given)
        self._by_source = {p.source: i for i, p in enumerate(params)}
        unsupported = {p.name: i for i, p in enumerate(params) if p.source == "none" and p.name not in HOW}
        if "dtype" in unsupported:
            self._by_source["dtype"] = unsupported.pop("dtype")
        self._unsupported = tuple(unsupported.items())
        static = [self._by_source[n] for n in ("dtype", "shape", "memory_config", "layout") if n in self._by_source]
        self._static = sorted({*unsupported.values(), *[i for i, _, _ in self._attributes], *static})
        self._device = self._by_source.get("device")
        self._layout = Layout.ROW_MAJOR if entry.on_device and row.name != "rand" else Layout.TILE
        self._in_place = None if entry.in_place is None else dict(self._operands)[entry.in_place]
        self._converted: dict[Any, tuple[StaticArguments, Storage]] = {}

    def __repr__(self) -> str:
        return f"<{self.callee}{self.__signature__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the op; see `help` of the function for its arguments."""
        values = self._binder.bind(args, kwargs)
        operands = self._device_operands(values)
        key: Any = None
        if operands is not None and (found := argument_key(values, self._static)) is not None:
            key = (len(operands), id(operands[0].storage.layout), *found)
        converted = None if key is None else self._converted.get(key)
        if operands is None or converted is None:
            return self._convert_and_perform(values, key)
        owner = owner_of(operands)
        outs = perform(self.entry.definition, self.callee, operands, converted[0], None, converted[1])
        if owner is not None:
            for x in outs:
                x.owner = owner
        return self._result(values, outs)

    def _device_operands(self, values: Sequence[Any]) -> list[Any] | None:
        """Returns the operands if they are one tensor on the devices, or several."""
        if self._device is not None and values[self._device] is not None:
            return None
        operands: Any = [values[i] for _, i in self._operands]
        if self._operand_list is not None:
            operands = values[self._operand_list]
        if type(operands) is not list:
            return None
        for x in cast("list[Any]", operands):
            if type(x) is not MeshTensor or x.storage.type is not StorageType.DEVICE:
                return None
        return cast("list[Any]", operands) or None

    def fit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Returns how badly the arguments fit this form of the op, 0 for a perfect fit; None if they do not fit."""
        try:
            values = self._binder.bind(args, kwargs)
        except ArgumentTypeError:
            return None
        if any(_is_tensor(values[i]) for i, _, _ in self._attributes):
            return None
        return sum(not _is_tensor(values[i]) for _, i in self._operands)

    # --- a call of a new form ---

    def _convert_and_perform(self, values: list[Any], key: Any) -> Any:
        """Converts the arguments and performs the op; keeps the conversion under `key` if that is not None."""
        activation: str | None = None
        for name, slot in self._unsupported:
            if name == "activation" and isinstance(values[slot], str) and values[slot] in ACTIVATIONS:
                # The cache holds no second op.
                activation, key = values[slot], None
            elif values[slot] is not None:
                raise UnsupportedError(
                    f"{self.callee}: {name} is not emulated, got {quote(values[slot])}; leave it out, and say what it "
                    "does with other ops."
                )
        operands, segments = self._convert_operands(values)
        owner = owner_of(operands)
        complete = COMPLETE.get(self.entry.definition.name)
        if complete is not None:
            slots = self._binder.slots
            completed = complete(self.callee, {name: values[slot] for name, slot in slots.items()}, operands)
            for name, value in completed.items():
                values[slots[name]] = value
            # Other operands may complete the arguments in another way.
            key = None if completed else key
        attributes = [*self._implied, *segments]
        for i, attribute, param in self._attributes:
            if values[i] is not None:
                attributes.append((attribute.name, convert_argument(self.callee, param, attribute, values[i])))
        row = self.entry.definition
        shape = self._shape(values, attributes)
        if (dtype := self._value(values, "dtype")) is not None:
            dtype = as_dtype(dtype, self.callee)
        static = StaticArguments(tuple(attributes), dtype, shape, Trait.ON_HOST in row.traits)
        device = self._value(values, "device")
        mesh = None if device is None else mesh_of(device)
        storage = self._storage(values, operands)
        outs = perform(row, self.callee, [array_of(x) for x in operands], static, mesh, storage)
        if key is not None:
            if len(self._converted) >= _LIMIT:
                self._converted.clear()
            self._converted[key] = static, storage
        outs = [set_owner(x, device if isinstance(device, MeshDevice) else owner) for x in outs]
        if any(isinstance(x, Tensor) for x in operands) or (not operands and mesh is None):
            outs = [wrap_array(x, storage.layout) for x in outs]
        if activation is not None:
            outs = [lookup(f"ttnn.{activation}")(outs[0])]
        return self._result(values, outs)

    def _result(self, values: Sequence[Any], outs: list[Any]) -> Any:
        """Returns the result of the call, after writing it into an operand or the output tensor if the op does so."""
        into = None if self._in_place is None else values[self._in_place]
        if isinstance(into, MeshTensor) and isinstance(outs[0], MeshTensor):
            into.overwrite(outs[0])
        if values[self._output] is not None:
            return write_result(self.callee, values[self._output], outs[0])
        return outs[0] if self.entry.definition.results == (1, 1) else outs

    def _value(self, values: Sequence[Any], source: str) -> Any:
        slot = self._by_source.get(source)
        return None if slot is None else values[slot]

    def _convert_operands(self, values: Sequence[Any]) -> tuple[list[Any], list[tuple[str, Any]]]:
        """Returns the operands, and the attribute that marks which of the optional ones are there."""
        if self._operand_list is not None:
            tensors = values[self._operand_list]
            if not isinstance(tensors, (list, tuple)):
                raise self._binder.error(f"takes a list of tensors, got {type(tensors).__name__}")
            return list(cast("Sequence[Any]", tensors)), []
        operands = [values[i] for _, i in self._operands]
        for number, value in enumerate(operands):
            if value is None and number < self.entry.definition.operands[0]:
                name = self.entry.python.params[self._operands[number][1]].name
                raise self._binder.error(f"needs a tensor as {name!r}, got None")
            if number in self._index_operands and isinstance(value, int):
                if not -(2**31) <= value < 2**31:
                    raise VerifyError(f"{self.callee} takes an index from {-(2**31)} to {2**31 - 1}, got {value}.")
                # Not in the element type of the tensor beside it: a narrow float could not represent the index.
                operands[number] = np.asarray(value, np.int32)
        # Not `None in operands`: tensors compare element by element.
        present = [x for x in operands if x is not None]
        if len(present) == len(operands):
            return operands, []
        return present, [("operandSegmentSizes", tuple(int(x is not None) for x in operands))]

    def _shape(self, values: Sequence[Any], attributes: Sequence[tuple[str, Any]]) -> tuple[int, ...] | None:
        """Returns the shape of the result of an op without operands; None for other ops."""
        shape = self._value(values, "shape")
        if shape is not None:
            return integers(self.callee, "shape", shape)
        known = dict(attributes)
        if "start" in known and "end" in known and (step := known.get("step", 1)) != 0:
            # Not len(range(...)), which refuses large numbers; the check of the result's size names the op.
            return (max(0, -((known["start"] - known["end"]) // step)),)
        size = known.get("size")
        if size is not None and min(size, default=0) < 0:
            raise VerifyError(f"{self.callee} makes a tensor of sizes from 0 on, got {list(size)}.")
        return known.get("shape", size)

    def _storage(self, values: Sequence[Any], operands: Sequence[Any]) -> Storage:
        memory, layout = self._value(values, "memory_config"), self._value(values, "layout")
        if memory is not None and not isinstance(memory, MemoryConfig):
            raise self._binder.error(f"takes a MemoryConfig as memory_config, got {quote(memory)}")
        if layout is not None and not isinstance(layout, Layout):
            raise self._binder.error(f"takes a Layout as layout, got {quote(layout)}")
        if layout is None:
            layout = next((x.layout for x in operands if isinstance(x, (MeshTensor, Tensor))), self._layout)
        if layout is Layout.TILE and (memory is None or memory == DRAM_MEMORY_CONFIG):
            return ON_DEVICE
        return Storage(StorageType.DEVICE, layout, memory or DRAM_MEMORY_CONFIG)


class Overloads:
    """Several ops of one Python name, such as `ttnn.clamp` of numbers and of tensors; the arguments select one."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = tuple(functions)
        first = functions[0]
        self.__name__, self.__qualname__, self.__module__ = first.__name__, first.__qualname__, first.__module__
        self.__doc__ = "\n\nOr:\n\n".join(f.__doc__ or "" for f in functions)

    def __repr__(self) -> str:
        return f"<{' or '.join(map(repr, self._functions))}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the op that the arguments fit."""
        fits = [(fit, i) for i, f in enumerate(self._functions) if (fit := f.fit(args, kwargs)) is not None]
        # If none fits, the first one raises the error.
        return self._functions[min(fits, default=(0, 0))[1]](*args, **kwargs)


class Namespace:
    """A namespace of ops, such as `ttnn.experimental`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        return lookup(f"{self.__name__}.{name}")

    def __dir__(self) -> list[str]:
        return members(self.__name__)

    def __repr__(self) -> str:
        return f"<namespace {self.__name__!r}: {', '.join(members(self.__name__))}>"


@functools.cache
def _callees() -> Mapping[str, list[TtnnOp]]:
    ops: dict[str, list[TtnnOp]] = {}
    for entry in ttnn.OPS.values():
        ops.setdefault(entry.python.callee, []).append(entry)
    return ops


def members(prefix: str) -> list[str]:
    """Returns the names below a dotted name."""
    inside = [c.removeprefix(f"{prefix}.") for c in _callees() if c.startswith(f"{prefix}.")]
    return sorted({c.split(".")[0] for c in inside})


@functools.cache
def _function(callee: str) -> Any:
    functions = [Function(e) for e in _callees().get(callee, ())]
    if not functions:
        return Namespace(callee)
    return functions[0] if len(functions) == 1 else Overloads(functions)


def lookup(callee: str) -> Any:
    """Returns the function or namespace of a dotted name."""
    owner, _, name = callee.rpartition(".")
    # Unknown names are not cached: there is no limit to them.
    if name.startswith("__") or not (callee in _callees() or members(callee)):
        raise AttributeError(
            f"{owner} has no {name!r}: neither a name of the emulated ttnn nor an op in the table "
            "of TTNN (jaxmesh/dialects/ttnn/*.py), where a new op is one entry."
        )
    return _function(callee)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, (MeshTensor, Tensor)) or getattr(x, "ndim", 0) > 0
