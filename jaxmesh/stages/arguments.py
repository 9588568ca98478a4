"""What is handed to a compiled program: arrays that nobody writes to while it runs, none twice that it may take.

A program runs while Python goes on, and JAX lets it read the memory of a NumPy argument as it lies: a write to that
array then changes results. So a program gets a copy. An array that was donated, or is donated and given once more, is
an error before XLA sees it: some versions of JAX end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxmesh.errors import ArgumentTypeError, VerifyError
from jaxmesh.jaxprs.caches import ARRAY
from jaxmesh.runtime.array_views import check_alive
from jaxmesh.ttnn.mesh_tensor import MeshTensor
from jaxmesh.ttnn.transfers import canonical
from jaxmesh.validate import check_nesting

_tree: Any = jax.tree


def check_leaf(leaf: Any, what: str) -> None:
    """Checks that one leaf of a call still holds something, and all of it can be handed over.

    Raises:
      DeletedError: an array or a tensor that was donated to a program, or deleted.
      ResidencyError: a tensor that was deallocated.
      ArgumentTypeError: a masked array, whose mask would be lost, or elements that JAX has no type for.
    """
    array: Any = leaf
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{what} is a masked array {leaf.dtype}{list(leaf.shape)}, but programs know no masks; pass "
            "array.filled(value)."
        )
    if isinstance(array, np.ndarray):
        canonical(leaf.dtype, what)
    check_alive(leaf.data if isinstance(leaf, MeshTensor) else leaf, what)


def handed(leaf: Any) -> Any:
    """One leaf of a call as a compiled program is given it."""
    if isinstance(leaf, MeshTensor):
        return leaf.unshared_data()
    array: Any = leaf
    return leaf.copy() if isinstance(array, np.ndarray) else leaf


def handed_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as a program is given them; see `handed_tree`."""
    if kwargs:
        return handed_tree((args, kwargs))
    for x in args:
        if type(x) is not ARRAY or x.is_deleted():
            return handed_tree((args, kwargs))
    return args, kwargs


def handed_tree(tree: Any) -> Any:
    """A tree of arguments as a program is given it; the tree itself where there is nothing to copy.

    Raises:
      DeletedError, ResidencyError, ArgumentTypeError: as of `check_leaf`.
    """
    copies = False
    try:
        leaves = _tree.leaves(tree)
    except (SystemError, RecursionError, ValueError):
        check_nesting(tree, "an argument")
        raise
    for leaf in leaves:
        # Nearly every leaf of nearly every call is a JAX array, of which there is one thing to ask.
        if type(leaf) is ARRAY and not leaf.is_deleted():
            continue
        copies = copies or isinstance(leaf, np.ndarray)
        check_leaf(leaf, "an argument")
    return _tree.map(handed, tree) if copies else tree


def check_donated(leaves: Sequence[Any], donated: Sequence[int]) -> None:
    """Checks that what a program may take is not given a second time.

    Args:
      leaves: the leaves of a call.
      donated: which of them are donated.

    Raises:
      VerifyError: one of these is another leaf too.
    """
    # Tensors that share an array part here, and then are two.
    arrays = [leaf.unshared_data() if isinstance(leaf, MeshTensor) else leaf for leaf in leaves]
    for i in donated:
        if isinstance(arrays[i], jax.Array) and not isinstance(arrays[i], Tracer):
            again = next((j for j, x in enumerate(arrays) if x is arrays[i] and j != i), None)
            if again is not None:
                raise VerifyError(
                    f"argument {i} is donated, so its memory may be taken, but argument {again} (counted over the "
                    f"leaves of all arguments) is the same array {arrays[i].dtype}{list(arrays[i].shape)}; pass "
                    "jax.numpy.copy(x) for one of them, or do not donate it."
                )
