"""Functions for the ops of TTNN: each definition is callable under the name of its Python call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.errors import VerifyError
from jaxmesh.tensor.assemble import owner_of, set_owner
from jaxmesh.tensor.beyond import is_enabled
from jaxmesh.tensor.device import MeshDevice, mesh_of
from jaxmesh.tensor.execute import StaticArguments, perform
from jaxmesh.tensor.host_tensor import Tensor, array_of, in_program, wrap_array
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.types import DRAM_MEMORY_CONFIG, ON_DEVICE, DataType, Layout, Storage, StorageType, stored_dtype
from jaxmesh.ttnn.call_arguments import HOW, JUDGED, Binder, argument_key, doc_of
from jaxmesh.ttnn.completion import COMPLETE, wide_axes
from jaxmesh.ttnn.conversion import (
    are_scalars,
    bring_operands,
    convert_argument,
    convert_operands,
    differ_in_storage,
    finish,
    integers,
)
from jaxmesh.ttnn.refusals import computing, is_computing, results_of
from jaxmesh.ttnn.rules.definitions import DEFINITIONS
from jaxmesh.ttnn.rules.given import Result


def _along(operands: Sequence[object], axis: object) -> int:
    """Returns the number of devices along a mesh axis; 1 where the op refuses the operands or the axis."""
    sizes = next((tuple(x.mesh.shape.values()) for x in operands if isinstance(x, MeshTensor)), ())
    return sizes[axis] if isinstance(axis, int) and 0 <= axis < len(sizes) else 1


_IMPLIED: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Any]] = {
    "reduce_type": lambda operands, given: "sum",
    "num_devices": lambda operands, given: _along(operands, given["cluster_axis"]),
    "num_experts_per_tok": lambda operands, given: (1, *np.shape(operands[1]))[-1],
}
"""Attributes without an argument in the Python call, and their values for the operands and arguments of a call."""

_LIMIT = 1024
"""The most calls of an op whose converted arguments are kept."""


class TtnnFunction:
    """A function of the emulated `ttnn`, with the name and the parameters of the real one."""

    def __init__(self, callee: str, also: Mapping[str, str]) -> None:
        self.callee = callee
        self.__name__ = callee.rpartition(".")[2]
        self.__qualname__, self.__module__ = callee.removeprefix("ttnn."), "jaxmesh.ttnn"
        self._binder = Binder(callee, also)
        self._slots = self._binder.slots
        self.__signature__ = self._binder.signature

    def __repr__(self) -> str:
        return f"<{self.callee}{self.__signature__}>"


class EmulatedFunction(TtnnFunction):
    """One op, callable as in `ttnn`; its signature, conversions and meaning come from its definition."""

    def __init__(self, entry: TtnnOp) -> None:
        params = entry.python.params
        super().__init__(entry.python.callee, {other: p.name for p in params for other in p.also})
        self.entry = entry
        self.__doc__ = doc_of(entry, self.__signature__)
        slots, known = self._slots, entry.by_name
        self._operands = sorted((int(p.key), slots[p.name]) for p in params if p.source == "operand")
        self._index_operands = {
            int(p.key) for p in params if p.source == "operand" and p.name.endswith(("index", "idx"))
        }
        self._operand_list = next((slots[p.name] for p in params if p.source == "operands"), None)
        self._attributes = [(slots[p.name], known[str(p.key)], p) for p in params if p.source == "attribute"]
        given = {a.name for _, a, _ in self._attributes}
        self._implied = tuple((k, v) for k, v in _IMPLIED.items() if k in known and k not in given)
        self._by_source = {p.source: slots[p.name] for p in params}
        self._by_source |= {name: slots[name] for name in ("dtype", "memory_config", "layout") if name in slots}
        typed = [self._by_source[n] for n in ("dtype", "shape", "memory_config", "layout") if n in self._by_source]
        attributes = [i for i, _, _ in self._attributes]
        self._device = self._by_source.get("device")
        described = {*typed, *attributes, *[i for _, i in self._operands]}
        described |= {i for i in (self._operand_list, self._device) if i is not None}
        self._unsupported = tuple((name, i) for name, i in slots.items() if i not in described and name not in HOW)
        judged = [slots[n] for n in JUDGED if n in slots]
        self._static = sorted({*typed, *attributes, *judged, *[i for _, i in self._unsupported]})
        self._dim: Any = slots.get("dim")
        self._in_place = None if entry.in_place is None else dict(self._operands)[entry.in_place]
        self._converted: dict[object, tuple[StaticArguments, Storage, Sequence[Result], str | None]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the op; see `help` of the function for its arguments."""
        values = self._binder.bind(args, kwargs)
        operands = self._device_operands(values)
        device: Any = None if self._device is None else values[self._device]
        key = None
        if operands is not None and (found := argument_key(values, self._static)) is not None:
            # Besides its arguments, the switch, the mesh, and whether another function is computed by it decide whether
            # the real function takes a call.
            owner = device or owner_of(operands)
            mesh = operands[0].mesh if operands else mesh_of(device)
            small = owner is None or owner.has_l1_small
            absent = [i for i, slot in self._operands if values[slot] is None]
            key = (is_enabled(), is_computing(), mesh, small, *absent, *map(_form, operands), *found)
        converted = None if key is None else self._converted.get(key)
        if operands is None or converted is None:
            return self._convert_and_perform(values, key)
        static, storage, results, computed = converted
        if computed is not None:
            operands = convert_operands(operands, computed)
        mesh = None if operands else mesh_of(device)
        outs = perform(self.entry, self.callee, operands, static, mesh, storage)
        if results:
            outs = finish(outs, results)
        if device is not None:
            outs = [set_owner(x, device) for x in outs]
        return self._result(values, outs)

    def _device_operands(self, values: Sequence[object]) -> list[Any] | None:
        """Returns the operands if they are tensors on the devices, or if a device is given in place of operands."""
        operands = [values[i] for _, i in self._operands]
        if self._operand_list is not None:
            operands = values[self._operand_list]
        if type(operands) is not list:
            return None
        known = cast("list[object]", operands)
        if self._device is not None and values[self._device] is not None:
            return known if not known and type(values[self._device]) is MeshDevice and not in_program() else None
        there: list[object] = []
        for i, x in enumerate(known):
            if type(x) is MeshTensor and x.storage.type is StorageType.DEVICE:
                there.append(x)
            elif x is not None or i < self.entry.operands[0]:
                return None
        return there or None

    # --- a call of a new form ---

    def _convert_and_perform(self, values: list[Any], key: object) -> Any:
        """Converts the arguments and performs the op; keeps the conversion under `key` if that is not None."""
        for name, slot in self._unsupported:
            self._binder.check_default(name, values[slot])
        given = dict(zip(self._slots, values, strict=True))
        results = results_of(self.callee, given) or ()
        with computing():
            if self.callee in COMPLETE and (changed := COMPLETE[self.callee](lookup, given)):
                # Other operands may complete the arguments in another way.
                given |= changed
                key = None
        if "cluster_axis" in self.entry.by_name and given["cluster_axis"] is None:
            axes = wide_axes(self.callee, values[self._operands[0][1]])
            if len(axes) > 1:
                return self._along(axes, values, results)
            given["cluster_axis"], key = next(iter(axes), 0), None
        values = list(given.values())
        operands, segments = self._convert_operands(values)
        dim: int = -1 if self._dim is None else self._dim
        scalar = bool(results) and dim >= 0 and are_scalars(operands)
        if scalar:
            # The real functions take the dims 0 and -1 of a scalar, or any.
            operands, key = [x.reshape(1) for x in operands], None
            values[dim] = 0 if isinstance(values[dim], int) else None
        target = given.get("device")
        mesh = None if target is None else mesh_of(target)
        if results and (brought := bring_operands(operands, mesh)) is not None:
            operands, key = brought, None
        computed: str | None = None
        if results and results[0].computed is not None:
            before = operands
            operands = convert_operands(operands, results[0].computed)
            if any(x is not y for x, y in zip(before, operands, strict=True)):
                computed = results[0].computed
        attributes = [*((name, value(operands, given)) for name, value in self._implied), *segments]
        for i, attribute, param in self._attributes:
            if values[i] is not None:
                attributes.append((attribute.name, convert_argument(self.callee, param, attribute, values[i])))
        shape = self._shape(values, attributes)
        dtype = self._value(values, "dtype")
        if results and not operands:
            dtype = DataType[results[0].dtype]
        elif results and results[0].computed is not None:
            # Computed in that type, and converted at the end.
            dtype = None
        if dtype is not None:
            dtype = stored_dtype(dtype, self.callee)
        static = StaticArguments(tuple(attributes), dtype, shape, Trait.ON_HOST in self.entry.traits)
        device = self._value(values, "device")
        mesh = None if device is None else mesh_of(device)
        storage = self._storage(values, operands)
        outs = perform(self.entry, self.callee, [array_of(x) for x in operands], static, mesh, storage)
        outs = [set_owner(x, device) for x in outs]
        if any(isinstance(x, Tensor) for x in operands) or (not operands and mesh is None):
            outs = [wrap_array(x, storage.layout) for x in outs]
        if scalar:
            outs = [x.reshape(()) for x in outs]
        if results:
            before, outs = outs, finish(outs, results)
            if key is not None and differ_in_storage(before, outs):
                # Calls of the same form need no more than that storage.
                storage, results = outs[0].storage, ()
        if key is not None:
            if len(self._converted) >= _LIMIT:
                self._converted.clear()
            self._converted[key] = static, storage, results, computed
        return self._result(values, outs)

    def _along(self, axes: Sequence[int], values: list[object], results: Sequence[Result]) -> Any:
        """Performs the op along one mesh axis after the other, or the last one first: devices count row by row."""
        inner, slot = list(values), self._operands[0][1]
        for axis in reversed(axes) if self.callee == "ttnn.all_gather" else axes:
            inner[self._slots["cluster_axis"]] = axis
            with computing():
                inner[slot] = self._convert_and_perform(inner, None)
        return self._result(values, finish([inner[slot]], results) if results else [inner[slot]])

    def _result(self, values: Sequence[object], outs: list[object]) -> Any:
        """Returns the result of the call, after writing it into an operand if the op does so."""
        into = None if self._in_place is None else values[self._in_place]
        if isinstance(into, MeshTensor) and isinstance(outs[0], MeshTensor):
            into.overwrite(outs[0])
        return outs[0] if self.entry.results == (1, 1) else outs

    def _value(self, values: Sequence[object], source: str) -> Any:
        slot = self._by_source.get(source)
        return None if slot is None else values[slot]

    def _convert_operands(self, values: Sequence[Any]) -> tuple[list[Any], list[tuple[str, Any]]]:
        """Returns the operands, and the attribute that marks which of the optional ones are there."""
        if self._operand_list is not None:
            return list(values[self._operand_list]), []
        operands = [values[i] for _, i in self._operands]
        for number, value in enumerate(operands):
            if value is None and number < self.entry.operands[0]:
                name = list(self._slots)[self._operands[number][1]]
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

    def _storage(self, values: Sequence[object], operands: Sequence[object]) -> Storage:
        memory, layout = self._value(values, "memory_config"), self._value(values, "layout")
        if layout is None:
            layout = next((x.layout for x in operands if isinstance(x, (MeshTensor, Tensor))), Layout.ROW_MAJOR)
        if layout is Layout.TILE and (memory is None or memory == DRAM_MEMORY_CONFIG):
            return ON_DEVICE
        return Storage(StorageType.DEVICE, layout, memory or DRAM_MEMORY_CONFIG)


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


COMPOSED: dict[str, Any] = {}
"""Functions without an op in the table, by their dotted names; each enters itself."""


def members(prefix: str) -> list[str]:
    """Returns the names below a dotted name."""
    inside = [c.removeprefix(f"{prefix}.") for c in (*DEFINITIONS, *COMPOSED) if c.startswith(f"{prefix}.")]
    return sorted({c.split(".")[0] for c in inside})


@functools.lru_cache(1024)
def op_function(callee: str) -> Any:
    """Returns the function of the op with a Python name, also where a composed one has the name; or a namespace."""
    return EmulatedFunction(DEFINITIONS[callee]) if callee in DEFINITIONS else Namespace(callee)


def lookup(callee: str) -> Any:
    """Returns the function or namespace of a dotted name."""
    if callee in COMPOSED:
        return COMPOSED[callee]
    owner, _, name = callee.rpartition(".")
    # Unknown names are unlimited, so they are not cached.
    if name.startswith("__") or not (callee in DEFINITIONS or members(callee)):
        raise AttributeError(
            f"{owner} has no {name!r}: neither a name of the emulated ttnn nor an op in the table "
            "of TTNN (jaxmesh/dialects/ttnn/*.py), where a new op is one entry."
        )
    return op_function(callee)


def _form(x: MeshTensor) -> tuple[Any, ...]:
    """Returns a key of a tensor's type on one mesh; the usual storage is None in it, because its hash is slow."""
    stored, local = x.operand()
    return stored.shape, stored.dtype, local, x.varying, None if x.storage is ON_DEVICE else x.storage
