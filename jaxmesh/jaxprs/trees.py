"""Paths to the leaves of trees of arguments and results, and nodes of trees in exports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import export
from jax._src.export import _export

# Importing the package reads no more modules than its names need.
_tree_util: Any = jax.tree_util


if TYPE_CHECKING:
    from jaxmesh.jaxprs.untyped import PyTree


def show_paths(tree: object, parameters: Sequence[str] = ()) -> list[str]:
    """Returns the path to each leaf of a tree definition as text.

    Args:
      tree: the tree definition.
      parameters: the names of the positional arguments, if the tree is that of `(args, kwargs)`.

    >>> import jax
    >>> show_paths(jax.tree.structure({"a": 0, "b": (1, 2)}))
    ["['a']", "['b'][0]", "['b'][1]"]
    >>> show_paths(jax.tree.structure((({"w": 0}, 1), {"scale": 2})), ("params", "x"))
    ["params['w']", 'x', 'scale']
    """
    return ["".join(keys) for keys in path_keys(tree, parameters)]


def show_path(path: Any, parameters: Sequence[str] = ()) -> str:
    """Returns the path to a leaf of `(args, kwargs)` as JAX shows it, such as `argument b['w']`.

    Without the names of the positional parameters it is `argument args[1]['w']`.
    """
    unknown = f"args{_tree_util.keystr(path[1:2])}"
    name = path[1].key if path[0].idx == 1 else parameters[path[1].idx] if parameters else unknown
    return f"argument {name}{_tree_util.keystr(path[2:])}"


def path_keys(tree: PyTree, parameters: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """Returns the path to each leaf of a tree definition, each key as text; `show_paths` describes the arguments.

    >>> import jax
    >>> path_keys(jax.tree.structure((({"w": 0},), {})), ("params",))
    [('params', "['w']")]
    """
    rows: list[tuple[str, ...]] = []
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    for path, _ in _tree_util.tree_flatten_with_path(numbered)[0]:
        keys = tuple(_tree_util.keystr((key,)) for key in path)
        if parameters:
            name = parameters[path[1].idx] if path[0].idx == 0 else path[1].key
            keys = (str(name), *keys[2:])
        rows.append(keys)
    return rows


def parameter_names(fun: Callable[..., object], count: int) -> tuple[str, ...]:
    """Returns the names of the parameters of a function that take `count` positional arguments; empty if unknown.

    >>> parameter_names(lambda x, *rest, scale=1: x, 3)
    ('x', 'rest[0]', 'rest[1]')
    """
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return ()  # Functions of C may lack a signature.
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names[:count]) if len(names) >= count else ()


# --- nodes of exports -------------------------------------------------------------------------------------------------

# JAX registers reading and writing together, with the type; a process that only reads an export need not import it.

_registries: Any = _export
_register: Any = export.register_pytree_node_serialization


def register_reader(
    name: str, read: Callable[[bytes], object], build: Callable[[object, Sequence[object]], object]
) -> None:
    """Registers, for nodes of a serialised name, the decoder of the auxiliary data and the constructor of a node."""
    # A placeholder for the type; its instances are never written.
    stand_in = type(name, (), {})
    _register(stand_in, serialized_name=name, serialize_auxdata=bytes, deserialize_auxdata=read, from_children=build)


def register_writer(kind: type, name: str, write: Callable[[Any], bytes]) -> None:
    """Registers the writer of nodes of a type under a name that `register_reader` has registered."""
    _registries.serialization_registry[kind] = (name, write)
