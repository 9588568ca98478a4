"""Python's operators on tensors: each is the row of TTNN of that name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from jaxmesh.errors import ResidencyError


def _apply(name: str, *operands: Any) -> Any:
    # What computes knows what a tensor is, and comes after this.
    from jaxmesh.ttnn.execute import operator

    made = operator(name, operands)
    return made if made is NotImplemented else owned(made, owner_of(operands))


def owner_of(operands: Sequence[Any]) -> Any:
    """The device that one of some tensors is on, as far as a device was named when it was made.

    Raises:
      MeshError: one of them was closed.
    """
    found = [x for x in (getattr(t, "_owner", None) for t in operands if isinstance(t, Operators)) if x is not None]
    # A closed device has no mesh any more, and says so.
    _ = [x.mesh for x in found]
    return found[0] if found else None


def owned(tensor: Any, owner: Any) -> Any:
    """The tensor, of which it is known now what device it is on."""
    if owner is not None and isinstance(tensor, Operators):
        held: Any = tensor
        held._owner = owner
    return tensor


class Operators:
    """Operators of tensors on the devices; the other operand is a tensor or a number.

    A comparison gives a tensor, element by element; so a tensor has no truth value. Hashes go by identity.
    """

    __slots__ = ("_owner",)
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Any:
        return _apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _apply("divide", other, self)

    def __matmul__(self, other: Any) -> Any:
        return _apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _apply("matmul", other, self)

    def __pow__(self, other: Any) -> Any:
        return _apply("pow_tensor", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _apply("pow_tensor", other, self)

    # No %: the remainder of TTNN has the sign of the dividend, Python's that of the divisor.

    def __and__(self, other: Any) -> Any:
        return _apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return _apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return _apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return _apply("bitwise_xor", other, self)

    def __invert__(self) -> Any:
        return _apply("bitwise_not", self)

    def __abs__(self) -> Any:
        return _apply("abs", self)

    def __neg__(self) -> Any:
        return _apply("neg", self)

    def __eq__(self, other: object) -> Any:
        return _apply("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _apply("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return _apply("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _apply("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _apply("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return _apply("ge", self, other)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> NoReturn:
        raise ResidencyError(
            "a multi-device tensor has no truth value: == and the other comparisons compare its elements and give a "
            "tensor. Read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer) first, or compare with `is`."
        )
