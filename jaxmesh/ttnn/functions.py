"""Functions made from rows: every op in the table of TTNN is callable under the name that its Python call has there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxmesh.dialects import ttnn
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn.op import TtnnOp
from jaxmesh.errors import ArgumentTypeError, UnsupportedError, VerifyError
from jaxmesh.ttnn.argument_conversion import converted, integers, written
from jaxmesh.ttnn.call_keys import tokens
from jaxmesh.ttnn.defaults import COMPLETE
from jaxmesh.ttnn.device import MeshDevice, mesh_of
from jaxmesh.ttnn.execute import Said, perform
from jaxmesh.ttnn.host_tensor import Tensor, array_of, wrapped
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.signatures import ACTIVATIONS, HOW, OUTPUTS, TAKEN, TAKEN_ALONG, doc_of, signature_of
from jaxmesh.ttnn.tensor_operators import owned, owner_of
from jaxmesh.ttnn.types import DRAM_MEMORY_CONFIG, ON_DEVICE, Layout, MemoryConfig, Place, StorageType, as_dtype
from jaxmesh.validate import quote

_IMPLIED: Mapping[str, Any] = {"reduce_type": "sum"}
"""Attributes that a Python call has no argument for, and what it then does."""

_KNOWN = 1024
"""How many ways to call an op are kept."""


class Function:
    """One op, callable as in `ttnn`; its signature, conversions and meaning are those of its row."""

    def __init__(self, entry: TtnnOp) -> None:
        self.entry = entry
        self.callee = entry.python.callee
        self.__name__ = self.callee.rsplit(".", 1)[-1]
        self.__qualname__ = self.callee.removeprefix("ttnn.")
        self.__module__ = "jaxmesh.ttnn"
        # What makes a tensor takes all by place, though it is printed by name.
        self.__signature__ = signature_of(
            entry.python.params, by_place=entry.on_device and entry.definition.operands == (0, 0)
        )
        self.__doc__ = doc_of(entry, self.__signature__)
        params = entry.python.params
        self._defaults = [p.default for p in self.__signature__.parameters.values()]
        self._slots = {p.name: i for i, p in enumerate(params)}
        kinds = [p.kind for p in self.__signature__.parameters.values()]
        self._places = sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds)
        self._orders: dict[Any, list[int]] = {}
        self._single = sorted((int(p.key), i) for i, p in enumerate(params) if p.source == "operand")
        self._indices = {n for n, i in self._single if params[i].name.endswith("index")}
        self._listed = [i for i, p in enumerate(params) if p.source == "operands"]
        known = entry.definition.by_name
        self._attributes = [(i, known[str(p.key)], p) for i, p in enumerate(params) if p.source == "attribute"]
        given = {a.name for _, a, _ in self._attributes}
        self._implied = tuple((k, v) for k, v in _IMPLIED.items() if k in known and k not in given)
        self._by_source = {p.source: i for i, p in enumerate(params)}
        unset = {p.name: i for i, p in enumerate(params) if p.source == "none" and p.name not in HOW}
        if "dtype" in unset:
            self._by_source["dtype"] = unset.pop("dtype")
        self._unset = tuple(unset.items())
        meant = {*unset.values(), *[i for i, _, _ in self._attributes]}
        said = [self._by_source[n] for n in ("dtype", "shape", "memory_config", "layout") if n in self._by_source]
        self._meant = sorted({*meant, *said})
        self._device = self._by_source.get("device")
        self._layout = Layout.ROW_MAJOR if entry.on_device and entry.definition.name != "rand" else Layout.TILE
        self._in_place = None if entry.in_place is None else dict(self._single)[entry.in_place]
        self._known: dict[Any, tuple[Said, Place]] = {}
        # Two more slots, for what is taken and means nothing, and for a tensor to write the result to.
        taken = TAKEN | TAKEN_ALONG if "cluster_axis" in self._slots else TAKEN
        has_input = entry.on_device or entry.definition.operands != (0, 0)
        into = OUTPUTS if entry.definition.results == (1, 1) and has_input else ()
        more = {**dict.fromkeys(taken, len(params)), **dict.fromkeys(into, len(params) + 1)}
        self._more = {name: slot for name, slot in more.items() if name not in self._slots}
        self._defaults += [None, None]

    def __repr__(self) -> str:
        return f"<{self.callee}{self.__signature__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the op; see `help` of the function for its arguments."""
        values = self._values(args, kwargs)
        operands = self._on_devices(values)
        key = None if operands is None else self._key(values, operands)
        known = None if key is None else self._known.get(key)
        if operands is None or known is None:
            return self._perform(values, key)
        owner = owner_of(operands)
        outs = perform(self.entry.definition, self.callee, operands, known[0], None, known[1])
        if owner is not None:
            outs = [owned(x, owner) for x in outs]
        return self._given(values, outs)

    # --- a call as one before ---

    def _on_devices(self, values: Sequence[Any]) -> list[Any] | None:
        """The operands, if all are tensors on the devices and there is one at least."""
        given: Any = values[self._listed[0]] if self._listed else [values[i] for _, i in self._single]
        if type(given) is not list or not given or (self._device is not None and values[self._device] is not None):
            return None
        found = cast("list[Any]", given)
        for x in found:
            if type(x) is not MeshTensor or x.place.storage is not StorageType.DEVICE:
                return None
        return found

    def _key(self, values: Sequence[Any], operands: Sequence[Any]) -> Any:
        """What makes two calls say the same; None where that is not known."""
        found = tokens(values, self._meant)
        return None if found is None else (len(operands), id(operands[0].layout), *found)

    # --- arguments ---

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        form = (len(args), *kwargs)
        order = self._orders.get(form)
        if order is None:
            order = self._orders[form] = self._order(len(args), kwargs)
        values = self._defaults.copy()
        for slot, value in zip(order, (*args, *kwargs.values()), strict=True):
            values[slot] = value
        return values

    def _order(self, count: int, names: Mapping[str, Any]) -> list[int]:
        """Which parameter each argument is for.

        Raises:
          ArgumentTypeError: one is unknown, given twice or missing.
        """
        if count > self._places:
            raise self._wrong(f"takes {self._places} arguments by place, got {count}")
        slots = {**self._more, **self._slots}
        unknown = [n for n in names if n not in slots]
        if unknown:
            raise self._wrong(f"has no argument {unknown[0]!r}")
        order = [*range(count), *[slots[n] for n in names]]
        twice = [n for n in names if slots[n] < count]
        if twice:
            raise self._wrong(f"got the argument {twice[0]!r} by place and by name")
        missing = [n for n, i in self._slots.items() if i not in order and self._defaults[i] is inspect.Parameter.empty]
        if missing:
            raise self._wrong(f"needs the argument {missing[0]!r}")
        return order

    def _wrong(self, what: str) -> ArgumentTypeError:
        return ArgumentTypeError(f"{self.callee} {what}; it is called as {self.callee}{self.__signature__}.")

    def fit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """How well the arguments are ones of this form of the op: fewer is better; None if they are not."""
        try:
            values = self._values(args, kwargs)
        except ArgumentTypeError:
            return None
        if any(_is_tensor(values[i]) for i, _, _ in self._attributes):
            return None
        return sum(not _is_tensor(values[i]) for _, i in self._single)

    # --- the op ---

    def _perform(self, values: list[Any], key: Any = None) -> Any:
        activation: str | None = None
        for name, slot in self._unset:
            if name == "activation" and isinstance(values[slot], str) and values[slot] in ACTIVATIONS:
                # Another op, which the next call of this kind must not forget.
                activation, key = values[slot], None
            elif values[slot] is not None:
                raise UnsupportedError(
                    f"{self.callee}: {name} is not emulated, got {quote(values[slot])}; leave it out, and say what it "
                    "does with other ops."
                )
        operands, segments = self._operands(values)
        owner = owner_of(operands)
        complete = COMPLETE.get(self.entry.definition.name)
        if complete is not None:
            given = {name: values[slot] for name, slot in self._slots.items()}
            completed = complete(self.callee, given, operands)
            for name, value in completed.items():
                values[self._slots[name]] = value
            # What follows from the operands may be otherwise for others.
            key = None if completed else key
        attributes = [*self._implied, *segments]
        for i, attribute, param in self._attributes:
            if values[i] is not None:
                attributes.append((attribute.name, converted(self.callee, param, attribute, values[i])))
        row = self.entry.definition
        on_host = Trait.ON_HOST in row.traits
        said = Said(tuple(attributes), self._dtype(values), self._shape(values, attributes), on_host)
        device = self._value(values, "device")
        mesh = None if device is None else mesh_of(device)
        place = self._place(values, operands)
        outs = perform(row, self.callee, [array_of(x) for x in operands], said, mesh, place)
        if key is not None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[key] = said, place
        outs = [owned(x, device if isinstance(device, MeshDevice) else owner) for x in outs]
        if any(isinstance(x, Tensor) for x in operands) or (not operands and mesh is None):
            outs = [wrapped(x, place.layout) for x in outs]
        if activation is not None:
            outs = [lookup(f"ttnn.{activation}", "ttnn")(outs[0])]
        return self._given(values, outs)

    def _given(self, values: Sequence[Any], outs: list[Any]) -> Any:
        """What the call gives. What the real op writes into the memory of a tensor is seen there."""
        into = None if self._in_place is None else values[self._in_place]
        if isinstance(into, MeshTensor) and isinstance(outs[0], MeshTensor):
            into.overwrite(outs[0])
        if values[-1] is not None:
            return written(self.callee, values[-1], outs[0])
        return outs[0] if self.entry.definition.results == (1, 1) else outs

    def _value(self, values: Sequence[Any], source: str) -> Any:
        slot = self._by_source.get(source)
        return None if slot is None else values[slot]

    def _operands(self, values: Sequence[Any]) -> tuple[list[Any], list[tuple[str, Any]]]:
        if self._listed:
            rows = values[self._listed[0]]
            if not isinstance(rows, (list, tuple)):
                raise self._wrong(f"takes a list of tensors, got {type(rows).__name__}")
            return list(cast("Sequence[Any]", rows)), []
        found = [values[i] for _, i in self._single]
        for number, value in enumerate(found):
            if value is None and number < self.entry.definition.operands[0]:
                raise self._wrong(
                    f"needs a tensor as {self.entry.python.params[self._single[number][1]].name!r}, got None"
                )
            if number in self._indices and isinstance(value, int):
                if not -(2**31) <= value < 2**31:
                    raise VerifyError(f"{self.callee} takes an index from {-(2**31)} to {2**31 - 1}, got {value}.")
                # An index is no element: a narrow float beside it could not hold it.
                found[number] = np.asarray(value, np.int32)
        # Not `None in found`: tensors compare element by element.
        if all(x is not None for x in found):
            return found, []
        return [x for x in found if x is not None], [("operandSegmentSizes", tuple(int(x is not None) for x in found))]

    def _dtype(self, values: Sequence[Any]) -> np.dtype[Any] | None:
        kind = self._value(values, "dtype")
        return None if kind is None else as_dtype(kind, self.callee)

    def _shape(self, values: Sequence[Any], attributes: Sequence[tuple[str, Any]]) -> tuple[int, ...] | None:
        """The shape of a result that is made of nothing."""
        said = self._value(values, "shape")
        if said is not None:
            return integers(self.callee, "shape", said)
        known = dict(attributes)
        if "start" in known and "end" in known and (step := known.get("step", 1)) != 0:
            # As len(range(...)), which refuses numbers that no machine counts to; who makes the tensor says so.
            return (max(0, -((known["start"] - known["end"]) // step)),)
        size = known.get("size")
        if size is not None and min(size, default=0) < 0:
            raise VerifyError(f"{self.callee} makes a tensor of sizes from 0 on, got {list(size)}.")
        return known.get("shape", size)

    def _place(self, values: Sequence[Any], operands: Sequence[Any]) -> Place:
        memory, layout = self._value(values, "memory_config"), self._value(values, "layout")
        if memory is not None and not isinstance(memory, MemoryConfig):
            raise self._wrong(f"takes a MemoryConfig as memory_config, got {quote(memory)}")
        if layout is not None and not isinstance(layout, Layout):
            raise self._wrong(f"takes a Layout as layout, got {quote(layout)}")
        if layout is None:
            layout = next((x.layout for x in operands if isinstance(x, (MeshTensor, Tensor))), self._layout)
        if layout is Layout.TILE and (memory is None or memory == DRAM_MEMORY_CONFIG):
            return ON_DEVICE
        return Place(StorageType.DEVICE, layout, memory or DRAM_MEMORY_CONFIG)


class Overloads:
    """Ops of one Python name, such as `ttnn.clamp` of numbers and of tensors; the arguments say which is meant."""

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
        # With no fit, the first one says what is wrong.
        return self._functions[min(fits, default=(0, 0))[1]](*args, **kwargs)


class Namespace:
    """Ops with a name in two parts, such as `ttnn.experimental`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        return lookup(f"{self.__name__}.{name}", self.__name__)

    def __dir__(self) -> Iterator[str]:
        return iter(members(self.__name__))

    def __repr__(self) -> str:
        return f"<namespace {self.__name__!r}: {', '.join(members(self.__name__))}>"


@functools.cache
def _callees() -> Mapping[str, list[TtnnOp]]:
    # Not before someone asks for an op.

    _ = ttnn
    found: dict[str, list[TtnnOp]] = {}
    for entry in ttnn.OPS.values():
        found.setdefault(entry.python.callee, []).append(entry)
    return found


def members(prefix: str) -> list[str]:
    """The names below a dotted one."""
    inside = [c.removeprefix(f"{prefix}.") for c in _callees() if c.startswith(f"{prefix}.")]
    return sorted({c.split(".")[0] for c in inside})


@functools.cache
def _found(callee: str) -> Any:
    entries = _callees().get(callee)
    if entries is None:
        return Namespace(callee) if members(callee) else None
    functions = [Function(e) for e in entries]
    return functions[0] if len(functions) == 1 else Overloads(functions)


def lookup(callee: str, owner: str) -> Any:
    """The function or namespace of a dotted name.

    Raises:
      AttributeError: there is none.
    """
    # What is unknown is not kept: anybody may ask for any name.
    hidden = callee.rsplit(".", 1)[-1].startswith("__")
    found = _found(callee) if not hidden and (callee in _callees() or members(callee)) else None
    if found is None:
        raise AttributeError(
            f"{owner} has no {callee.rsplit('.', 1)[-1]!r}: neither a name of the emulated ttnn nor an op in the table "
            "of TTNN (jaxmesh/dialects/ttnn/*.py), where a new op is one entry."
        )
    return found


def _is_tensor(x: Any) -> bool:
    return isinstance(x, (MeshTensor, Tensor)) or (hasattr(x, "ndim") and x.ndim > 0)
