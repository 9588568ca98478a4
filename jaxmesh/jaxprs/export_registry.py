"""Pytree nodes in exports of `jax.export`, registered for reading apart from their type.

JAX registers reading and writing together, with the type; a process that only reads an export need not import the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import export
from jax._src.export import _export

_registries: Any = _export
_register: Any = export.register_pytree_node_serialization


def register_reader(name: str, read: Callable[[bytes], Any], build: Callable[[Any, Sequence[Any]], Any]) -> None:
    """Registers, for nodes of a serialised name, the decoder of the auxiliary data and the constructor of a node."""
    # A placeholder for the type; its instances are never written.
    stand_in = type(name, (), {})
    _register(stand_in, serialized_name=name, serialize_auxdata=bytes, deserialize_auxdata=read, from_children=build)


def register_writer(kind: type, name: str, write: Callable[[Any], bytes]) -> None:
    """Registers the writer of nodes of a type under a name that `register_reader` has registered."""
    _registries.serialization_registry[kind] = (name, write)
