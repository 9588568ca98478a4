"""Functions of `ttnn` composed of others, and functions without an op of their own."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxmesh.jaxprs.untyped import jnp
from jaxmesh.tensor.host_tensor import Tensor
from jaxmesh.tensor.mesh_device import MeshDevice
from jaxmesh.tensor.mesh_tensor import MeshTensor
from jaxmesh.tensor.types import DataType, MemoryConfig, data_type, stored_dtype
from jaxmesh.ttnn.call_arguments import HOW
from jaxmesh.ttnn.conversion import finish_one
from jaxmesh.ttnn.functions import COMPOSED, TtnnFunction, lookup, op_function
from jaxmesh.ttnn.refusals import computing, results_of


class Composed(TtnnFunction):
    """A function composed of others, callable as in `ttnn`; the arguments it does not know must be left out."""

    def __init__(self, callee: str, compute: Callable[..., object]) -> None:
        super().__init__(callee, {})
        self.__doc__ = compute.__doc__
        self._compute = compute
        COMPOSED[callee] = self
        self._known = [n for n in inspect.signature(compute).parameters if n in self._slots]
        self._others = [(n, i) for n, i in self._slots.items() if n not in self._known and n not in HOW]

    def __call__(self, *args: object, **kwargs: Any) -> Any:
        """Performs the function; see `help` of it for its arguments."""
        values = self._binder.bind(args, kwargs)
        for name, slot in self._others:
            self._binder.check_default(name, values[slot])
        every = dict(zip(self._slots, values, strict=True))
        results = results_of(self.callee, every)
        # Where no results are declared, the rules of the composing functions determine the types.
        with contextlib.nullcontext() if results == [] else computing():
            result = self._compute(**{name: every[name] for name in self._known})
        return finish_one(result, results[0]) if results else result


def composed(compute: Callable[..., object]) -> Composed:
    """Gives a function the parameters of the real one, and enters it under its name."""
    return Composed(f"ttnn.{compute.__name__}", compute)


@composed
def clamp(input_tensor: MeshTensor, min: object, max: object, memory_config: MemoryConfig | None) -> Any:  # noqa: A002
    """Selects values between two bounds, which are numbers or tensors; None leaves a side open."""
    if any(isinstance(b, (Tensor, MeshTensor)) for b in (min, max)):
        maximum, minimum = lookup("ttnn.maximum"), lookup("ttnn.minimum")
        out = input_tensor if min is None else maximum(input_tensor, min, memory_config=memory_config)
        return out if max is None else minimum(out, max, memory_config=memory_config)
    least, most = -math.inf, math.inf
    stored = stored_dtype(data_type(input_tensor.dtype), "ttnn.clamp")
    if jnp.issubdtype(stored, jnp.integer):
        whole = jnp.iinfo(stored)
        least, most = int(whole.min), int(whole.max)
    low, high = least if min is None else min, most if max is None else max
    return op_function("ttnn.clamp")(input_tensor, low, high, memory_config=memory_config)


@composed
def conv1d(
    input_tensor: object, weight_tensor: Any, device: MeshDevice, in_channels: int, out_channels: int, batch_size: int,
    input_length: int, kernel_size: int, stride: int, padding: int | Sequence[int], dilation: int, groups: int,
    bias_tensor: object, dtype: DataType | None, memory_config: MemoryConfig | None,
) -> Any:  # fmt: skip
    """Computes a convolution of rows, by `ttnn.conv2d` of images one pixel wide."""
    sides = [padding, padding] if isinstance(padding, int) else list(padding)
    shape = [*weight_tensor.shape[:3], 1]
    weights = weight_tensor if len(weight_tensor.shape) == 4 else lookup("ttnn.reshape")(weight_tensor, shape)
    flat = lookup("ttnn.reshape")(input_tensor, [1, 1, batch_size * input_length, in_channels])
    return lookup("ttnn.conv2d")(
        input_tensor=flat, weight_tensor=weights, device=device, in_channels=in_channels, out_channels=out_channels,
        batch_size=batch_size, input_height=input_length, input_width=1, kernel_size=[kernel_size, 1],
        stride=[stride, 1], padding=[sides[0], sides[-1], 0, 0], dilation=[dilation, 1], groups=groups,
        bias_tensor=bias_tensor, dtype=dtype, memory_config=memory_config,
    )  # fmt: skip
