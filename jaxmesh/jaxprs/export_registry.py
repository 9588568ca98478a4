"""Nodes of trees that `jax.export` writes: registered for reading before their type is read.

JAX registers both at once, with the type; but a process that reads an export may have no other need of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import export
from jax._src.export import _export

_registries: Any = _export
_register: Any = export.register_pytree_node_serialization


def readable(name: str, read: Callable[[bytes], Any], build: Callable[[Any, Sequence[Any]], Any]) -> None:
    """Lets exports be read that hold nodes written as `name`: `build` makes a node of what `read` gives."""
    # Stands for the type, which `build` knows; there are none to write.
    stand_in = type(name, (), {})
    _register(stand_in, serialized_name=name, serialize_auxdata=bytes, deserialize_auxdata=read, from_children=build)


def writable(kind: type, name: str, write: Callable[[Any], bytes]) -> None:
    """Lets exports be written that hold nodes of a type, for which `name` is readable."""
    _registries.serialization_registry[kind] = (name, write)
