"""The members that host tensors and multi-device tensors share, as far as they need no computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from jaxmesh.dialects.ttnn.layouts import padded_shape
from jaxmesh.errors import ResidencyError, VerifyError
from jaxmesh.jaxprs.untyped import Array, DType
from jaxmesh.tensor.mesh_device import MeshToTensor
from jaxmesh.tensor.torch_interop import check_to_torch, torch_from_array
from jaxmesh.tensor.types import DataType, Layout, MemoryConfig, Shape, data_type, is_block

if TYPE_CHECKING:

    class _Members:
        """Members that the tensor classes define, and members that `install_methods` adds."""

        # Members of both kinds of tensors.
        @property
        def shape(self) -> Shape: ...
        @property
        def dtype(self) -> DType: ...
        @property
        def layout(self) -> Layout: ...
        def memory_config(self) -> MemoryConfig | None: ...

        # Installed by `install_methods`.
        def value(self, op: str, composer: MeshToTensor | None) -> Array: ...
        def cpu(self, blocking: bool = True, cq_id: int | None = None) -> Any: ...
        def to(self, *args: object, **kwargs: Any) -> Any: ...
        def reshape(self, *shape: object) -> Any: ...
        def __getitem__(self, key: object) -> Any: ...
        def _binary(self, other: object) -> object: ...
        def _unary(self) -> object: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = _binary
        __xor__ = __rxor__ = __lt__ = __le__ = __gt__ = __ge__ = _binary
        __invert__ = __abs__ = __neg__ = _unary

else:
    _Members = object


class TensorBase(_Members):
    """A tensor of `ttnn`: a `Tensor` in host memory or a `MeshTensor`.

    `install_methods` adds the operators and the methods that move or compute. A comparison gives a tensor, element by
    element, so a tensor cannot be a truth value. Hashes go by identity.
    """

    __slots__ = ()
    __array_ufunc__ = None
    # A tensor is indexed but not iterated over: each step would start a program on the devices.
    __iter__ = None

    # --- reading ---

    def to_numpy(self, *, mesh_composer: MeshToTensor | None = None) -> Array:
        """Returns a copy of the value as a NumPy array; a tensor on several devices needs a composer.

        Raises:
          ResidencyError: several devices and no composer; or deallocated.
        """
        return np.array(self.value("to_numpy", mesh_composer))

    def to_torch(
        self, dtype: object = None, *, torch_rank: int | None = None, mesh_composer: MeshToTensor | None = None
    ) -> object:
        """Returns the value as a torch tensor, where torch is installed; see `ttnn.to_torch`."""
        check_to_torch(dtype, torch_rank)
        return torch_from_array(self.value("to_torch", mesh_composer), dtype, torch_rank)

    def to_list(self) -> Any:
        """Returns the numbers of a tensor on one device as nested lists.

        Raises:
          ResidencyError: the tensor is on several devices.
        """
        return self.value("to_list", None).tolist()

    tolist = to_list

    def item(self, *, cq_id: int | None = None) -> Any:
        """Returns the only element.

        Raises:
          VerifyError: the tensor has more elements, or none.
          ResidencyError: the tensor is on several devices.
        """
        array = self.value("item", None)
        if array.size != 1:
            raise VerifyError(f"item gives the only element of a tensor, this one has the shape {list(array.shape)}.")
        return array.item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> NoReturn:
        raise ResidencyError(
            "a multi-device tensor has no truth value: == and the other comparisons compare its elements and give a "
            "tensor. Read it with jaxmesh.ttnn.aggregate_tensor(tensor, composer) first, or compare with `is`."
        )

    # --- properties ---

    @property
    def padded_shape(self) -> Shape:
        """The shape in memory: in `Layout.TILE` the last two dims are padded to whole tiles of 32x32."""
        return Shape(padded_shape(tuple(self.shape), self.layout is Layout.TILE))

    def element_size(self) -> int:
        """Returns the bytes of an element."""
        return 1 if is_block(self.dtype) else int(self.dtype.itemsize)

    def get_dtype(self) -> DataType:
        """Returns the `DataType`."""
        return data_type(self.dtype)
