"""Binds the arguments of a call to the parameters of an op, derives a key of the arguments, and documents them.

The first two are done once for calls of the same form, because `inspect.Signature.bind` and the conversion of
attributes would each add a tenth to the time of a small op.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from jaxmesh.dialects.ttnn.op import Param, TtnnOp
from jaxmesh.errors import ArgumentTypeError, UnsupportedError
from jaxmesh.tensor.types import BufferType, DataType, Layout, MemoryConfig, Shape, TensorMemoryLayout
from jaxmesh.ttnn.signatures import NEEDED, Parameter, default_of, is_tensor, signatures, table, test_of
from jaxmesh.validate import quote

_LIMIT = 1024
"""The most forms of calls of a function whose parameters are kept."""


class Binder:
    """Binds call arguments to slots: one per parameter of the real function, over all of its overloads.

    Attributes:
      callee: the dotted name of the function.
      slots: the number of the slot by the name of the parameter.
      defaults: the default in each slot, of the first overload that has the parameter.
    """

    def __init__(self, callee: str, also: Mapping[str, str] = MappingProxyType({})) -> None:
        """Reads the signatures of a function; `also` maps a name in some overload to the name of its slot."""
        self.callee, self._also = callee, also
        self._overloads = signatures(callee)
        assert self._overloads, f"{callee} is missing in jaxmesh/ttnn/signatures.txt"
        names = dict.fromkeys(also.get(p.name, p.name) for overload in self._overloads for p in overload)
        self.slots: dict[str, int] = {name: i for i, name in enumerate(names)}
        self.defaults: list[Any] = [None] * len(self.slots)
        for overload in reversed(self._overloads):
            for p in overload:
                self.defaults[self.slot(p.name)] = default_of(p)
        self._orders: dict[object, tuple[list[int], list[object]]] = {}

    @property
    def signature(self) -> inspect.Signature:
        """The signature for `help`, of the first overload."""
        place, name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        rows = [
            inspect.Parameter(p.name, name if p.keyword else place, default=default_of(p)) for p in self._overloads[0]
        ]
        return inspect.Signature(rows, __validate_parameters__=False)

    def slot(self, name: str) -> int:
        """Returns the slot of a parameter."""
        return self.slots[self._also.get(name, name)]

    def is_default(self, slot: int, value: object) -> bool:
        """Returns True if a value marks an argument that was left out."""
        default = self.defaults[slot]
        return value is None or value is default or (not is_tensor(value) and value == default)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """Returns the value of each slot."""
        given = (*args, *kwargs.values())
        form = (len(args), *kwargs, *map(type, given))
        known = self._orders.get(form)
        if known is None:
            known = self._known_by_elements(form, given, args, kwargs)
        values = known[1].copy()
        for slot, value in zip(known[0], given, strict=True):
            values[slot] = value
        return values

    def _known_by_elements(
        self, form: tuple[object, ...], given: Sequence[object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[list[int], list[object]]:
        """Returns what `_select` does, kept by element types, too: the types in a list may select another overload."""
        rows = [tuple(map(type, cast("Sequence[object]", x))) for x in given if type(x) is list or type(x) is tuple]
        if any(list in row or tuple in row for row in rows):
            return self._select(args, kwargs)
        key = (form, *rows) if rows else form
        known = self._orders.get(key)
        if known is None:
            if len(self._orders) >= _LIMIT:
                self._orders.clear()
            known = self._orders[key] = self._select(args, kwargs)
        return known

    def _select(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[list[int], list[Any]]:
        """Returns the slot of each argument and the defaults, by the first overload that takes the arguments."""
        problems: list[tuple[int, str]] = []
        for overload in self._overloads:
            found = _mismatch(overload, args, kwargs)
            if found is None:
                order = [self.slot(p.name) for p in overload[: len(args)]]
                defaults = [None] * len(self.slots)
                for p in overload:
                    defaults[self.slot(p.name)] = default_of(p)
                return [*order, *[self.slot(n) for n in kwargs]], defaults
            problems.append(found)
        # The overload that most arguments fit.
        raise self.error(max(problems, key=lambda p: p[0])[1])

    def error(self, what: str) -> ArgumentTypeError:
        """Returns an error about a call, with the signature, in the words of both libraries."""
        shown = " or ".join(f"{self.callee}{row}" for row in table()[self.callee])
        return ArgumentTypeError(
            f"{self.callee} {what}; it is called as {shown}. In ttnn: incompatible function arguments."
        )

    def check_default(self, name: str, value: object) -> None:
        """Refuses an argument that is not emulated, unless it was left out."""
        if not self.is_default(self.slots[name], value):
            raise UnsupportedError(
                f"{self.callee}: {name} is not emulated, got {quote(value)}; leave it out, and say what it does with "
                "other ops."
            )


def _mismatch(
    overload: Sequence[Parameter], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[int, str] | None:
    """Returns how far arguments fit an overload, and what does not; None if they fit."""
    places = [p for p in overload if not p.keyword]
    by_name = {p.name: p for p in overload}
    unknown = [n for n in kwargs if n not in by_name]
    if unknown:
        return 0, f"has no argument {unknown[0]!r}"
    if len(args) > len(places):
        return 0, f"takes {len(places)} arguments by place, got {len(args)}"
    twice = [p.name for p in places[: len(args)] if p.name in kwargs]
    if twice:
        return 0, f"got the argument {twice[0]!r} by place and by name"
    given = {p.name: x for p, x in zip(places, args, strict=False)} | dict(kwargs)
    missing = [p.name for p in overload if p.default is NEEDED and p.name not in given]
    if missing:
        return 1, f"needs the argument {missing[0]!r}"
    for number, (name, value) in enumerate(given.items()):
        declared = by_name[name].type
        if not test_of(declared)(value):
            return 2 + number, f"takes {declared} as {name}, got {quote(value)}"
    return None


_PLAIN = frozenset({int, bool, str})
_ROWS = frozenset({list, tuple, Shape})


def argument_key(values: Sequence[Any], slots: Sequence[int]) -> list[Hashable] | None:
    """Returns a key of the values in some slots: equal keys have values of the same types and meaning.

    It has two entries per value, and is None if a value cannot be a key, such as an array. Emitted programs make their
    lists and memory configs anew in every call, so identity cannot be a key. Nor can
    values: `1 == True == 1.0`.
    """
    key: list[Hashable] = []
    for slot in slots:
        value = values[slot]
        kind = value.__class__
        if value is None or kind in _PLAIN:
            key += kind, value
        elif kind is MemoryConfig:
            memory: MemoryConfig = value
            layout, buffer = memory.memory_layout, memory.buffer_type
            if (
                memory.shard_spec is not None
                or type(layout) is not TensorMemoryLayout
                or type(buffer) is not BufferType
            ):
                return None
            # Members of an enum live as long as the process, and their hash is slow.
            key += id(layout), id(buffer)
        elif kind is DataType or kind is Layout:
            key += kind, id(value)
        elif kind in _ROWS:
            row: tuple[object, ...] = tuple(value)
            for entry in row:
                if type(entry) is not int:
                    return None
            key += kind, row
        elif kind is float:
            # 0.0 and -0.0 are equal.
            key += kind, repr(value)
        else:
            return None
    return key


HOW = frozenset({
    "ag_global_semaphores", "applied_shard_scheme", "barrier_semaphores", "blocking", "chunks_per_sync",
    "compute_config", "compute_kernel_config", "config_tensor_in_dram", "conv_config", "core_grid", "correction",
    "cq_id", "deallocate_input", "disable_compensated_sum", "dram_slice_config", "enable_secondary_dm",
    "fast_and_approximate_mode", "global_cb", "intermediate_memory_config", "intermediate_tensor", "mesh_device",
    "mode", "momentum", "num_buffers_per_channel", "num_links", "num_workers_per_link", "numeric_stable",
    "output_layout", "pad_value", "padding_idx", "program_config", "queue_id", "reallocate_halo_output",
    "recip_tensor", "reshape_tile_mode", "rs_global_semaphores", "share_cache", "skip_padding_fill", "slice_config",
    "stable", "sub_core_grid", "sub_core_grids", "sub_device_id", "subdevice_id", "topology", "use_2d_core_grid",
    "use_falcon7b_backend", "use_l1_small_for_semaphores", "use_multicore", "variant", "vector_mode",
})  # fmt: skip
"""Arguments that change how and where an op is computed but not its value."""

JUDGED = ("fast_and_approximate_mode", "output_layout")
"""Those of them that decide whether the real function takes a call, or its result's layout."""

_DESCRIPTIONS: Mapping[str, str] = {
    "operand": "a tensor on the devices; or a number, where shapes broadcast",
    "operands": "a list of tensors on the devices",
    "operand_device": "accepted and ignored",
    "memory_config": "the `MemoryConfig` of the result, kept and shown",
    "dtype": "the element type of the result; a `DataType`",
    "layout": "the `Layout` of the result, kept and shown",
    "shape": "the shape of the result",
    "device": "the mesh device to make it on; None makes a host tensor",
    "compute_config": "accepted and ignored",
    "text": "accepted and ignored",
    "none": "None; other values are not emulated",
}


def doc_of(entry: TtnnOp, signature: inspect.Signature) -> str:
    """Returns the docstring of the function of an op."""
    attributes = entry.by_name

    def line(param: Param) -> str:
        if param.source == "none" and (param.name in HOW or param.name == "dtype"):
            return f"  {param.name}: {_DESCRIPTIONS['dtype' if param.name == 'dtype' else 'text']}."
        if param.source == "attribute":
            a = attributes[str(param.key)]
            return f"  {param.name}: {a.kind}, the attribute `{a.name}` of the op."
        return f"  {param.name}: {_DESCRIPTIONS[param.source]}."

    args = "\n".join(map(line, entry.python.params))
    count = "A tensor" if entry.results == (1, 1) else "A list of tensors"
    return (
        f"`ttnn.{entry.name}`, on every device.\n\nCalled as `{entry.python.callee}{signature}`.\n\n"
        f"Args:\n{args}\n\nReturns:\n  {count}, of local (per-device) shape.\n\n"
        "Raises:\n  ArgumentTypeError: wrong arguments.\n"
        "  ResidencyError: a tensor is in host memory, or deallocated.\n"
        "  MeshMismatchError: the tensors are on different meshes.\n  VerifyError: the op does not take these shapes, "
        "element types or numbers."
    )
