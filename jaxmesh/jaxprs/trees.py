"""Paths to the leaves of trees of arguments and results."""

from __future__ import annotations

from typing import Any, cast

import jax


def leaf_paths(tree: Any) -> list[Any]:
    """Returns the path to each leaf of a tree definition: a tuple of JAX's keys."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    rows = cast("list[tuple[Any, Any]]", jax.tree_util.tree_flatten_with_path(numbered)[0])
    return [path for path, _ in rows]


def show_paths(tree: Any) -> list[str]:
    """Returns the path to each leaf of a tree definition as text.

    >>> import jax
    >>> show_paths(jax.tree.structure({"a": 0, "b": (1, 2)}))
    ["['a']", "['b'][0]", "['b'][1]"]
    """
    return [jax.tree_util.keystr(path) for path in leaf_paths(tree)]
