"""Inputs that have a shape and no values: on the devices ttnn makes them, on the host large ones stay promises.

A promise stands for a host tensor without data. The functions of ttnn that take host tensors also take promises
here; one that goes to the devices becomes an empty tensor there, of the same shape, layout and distribution.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

REAL_BYTES = 1 << 20
"""Host tensors of at most so many bytes are made, of zeros: ttnn then judges every step with them."""
_BYTES = {"BFLOAT16": 2, "FLOAT32": 4, "UINT32": 4, "INT32": 4, "UINT16": 2, "UINT8": 1, "INT8": 1}


class Promise:
    """A host tensor that is not made; after a distribution the shape is that of one device, and `topology` the plan."""

    def __init__(self, shape: Sequence[int], dtype: Any, layout: Any, topology: Any = None) -> None:
        self.shape, self.dtype, self.layout, self.topology = tuple(map(int, shape)), dtype, layout, topology

    @property
    def bytes(self) -> int:
        """The bytes that it would take, on one device."""
        return math.prod(self.shape) * _BYTES.get(self.dtype.name, 4)


class Plans:
    """The results of calls that ttnn has planned, for equal calls on other tensors of the same kind.

    Where nothing is dispatched, the plan of such a call is the same, and an empty tensor is as good as its result.
    """

    def __init__(self, ttnn: Any) -> None:
        self._ttnn = ttnn
        self._kinds: dict[Any, tuple[Any, Any, Any]] = {}

    def result(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[..., Any]
    ) -> Any:
        """Returns what `call` makes of the arguments, or an empty tensor of the kind that the function gave before."""
        key = function, self._key(args), self._key(kwargs)
        if key in self._kinds:
            spec, topology, device = self._kinds[key]
            options = {"dtype": spec.dtype, "layout": spec.layout, "memory_config": spec.memory_config}
            made = self._ttnn.empty(spec.shape, device=device, **options)
            if made.spec == spec:
                made.update_tensor_topology(topology)
                return made
        result = call(*args, **kwargs)
        if isinstance(result, self._ttnn.Tensor) and result.device() is not None:
            self._kinds[key] = result.spec, result.tensor_topology(), result.device()
        return result

    def _key(self, x: Any) -> Any:
        """Returns what is equal for arguments that mean the same."""
        if isinstance(x, self._ttnn.Tensor):
            # A TensorSpec is equal to another one, and has another hash.
            kind = x.shape, x.padded_shape, x.dtype, x.layout, x.memory_config()
            return "tensor", *map(repr, (*kind, x.storage_type(), x.tensor_topology()))
        if isinstance(x, Promise):
            return "promise", x.shape, *map(repr, (x.dtype, x.layout))
        if type(x) is dict:
            return tuple(self._key(item) for item in cast("dict[str, Any]", x).items())
        if type(x) in (list, tuple):
            return type(x).__name__, *map(self._key, cast("Sequence[Any]", x))
        if x is None or isinstance(x, (bool, int, float, str, enum.Enum)):
            return type(x), repr(x)
        if (text := repr(x)) and " at 0x" not in text:
            return type(x), text
        fields = [(n, getattr(x, n)) for n in dir(x) if not n.startswith("_")]
        return type(x), *((n, self._key(v)) for n, v in fields if not callable(v))


class Shapes:
    """A `ttnn` whose functions also take promises; with `plans`, equal calls are planned once."""

    def __init__(self, ttnn: Any, inside: Any = None, plans: Plans | None = None) -> None:
        self._ttnn, self._inside, self._plans = ttnn, ttnn if inside is None else inside, plans
        self._made_of: dict[int, tuple[Any, tuple[Any, ...]]] = {}

    def plan_once(self) -> None:
        """Lets equal calls be planned once; for a program whose operations are not dispatched."""
        self._plans = Plans(self._ttnn)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inside, name)
        if self._inside is self._ttnn and name in _ON_PROMISES:
            return functools.partial(_ON_PROMISES[name], self)
        if isinstance(found, ModuleType):
            return Shapes(self._ttnn, found, self._plans)
        return found if isinstance(found, type) or not callable(found) else self._with_real(found)

    def _with_real(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function to which promises are given as tensors of zeros."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*map(self.as_real, args), **{k: self.as_real(v) for k, v in kwargs.items()})

        plans = self._plans
        return call if plans is None else lambda *args, **kwargs: plans.result(function, args, kwargs, call)

    # --- tensors ---

    def as_real(self, x: Any) -> Any:
        """Returns a promise as a host tensor of zeros, and everything else as it is."""
        if not isinstance(x, Promise):
            return x
        tensor = self.make_zeros(x.shape, x.dtype)
        return tensor if x.layout == self._ttnn.Layout.ROW_MAJOR else self._ttnn.to_layout(tensor, x.layout)

    def make_zeros(self, shape: Sequence[int], dtype: Any) -> Any:
        """Returns a host tensor of zeros, row by row."""
        return self._ttnn.zeros(tuple(shape), dtype=dtype, layout=self._ttnn.Layout.ROW_MAJOR)

    def make_host(self, shape: Sequence[int], dtype: Any) -> Any:
        """Returns a host tensor of zeros, or the promise of one if it is large."""
        promise = Promise(shape, dtype, self._ttnn.Layout.ROW_MAJOR)
        return promise if promise.bytes > REAL_BYTES else self.as_real(promise)

    def make_empty(self, promise: Promise, layout: Any, device: Any, memory_config: Any) -> Any:
        """Returns a tensor on the devices that nothing was written to."""
        shape = self._ttnn.Shape(list(promise.shape))
        options = {} if memory_config is None else {"memory_config": memory_config}
        tensor = self._ttnn.empty(shape, dtype=promise.dtype, layout=layout, device=device, **options)
        if promise.topology is not None:
            tensor.update_tensor_topology(promise.topology)
        return tensor

    # --- functions that take promises ---

    def mapper_config(self, placements: Any, *shape: Any) -> Any:
        """Makes the config of a mapper, and remembers what it was made of."""
        return self._remember(self._ttnn.MeshMapperConfig(placements, *shape), (placements, *shape))

    def composer_config(self, dims: Any, *shape: Any) -> Any:
        """Makes the config of a composer, and remembers what it was made of."""
        return self._remember(self._ttnn.MeshComposerConfig(dims, *shape), (dims, *shape))

    def create_mesh_mapper(self, device: Any, config: Any) -> Any:
        """Makes a mapper, and remembers its config; without a shape of its own it is for the whole mesh."""
        made = self._ttnn.create_mesh_mapper(device, config)
        return self._remember(made, (*self._parts(config), device.shape)[:2])

    def create_mesh_composer(self, device: Any, config: Any) -> Any:
        """Makes a composer, and remembers its config; without a shape of its own it is for the whole mesh."""
        made = self._ttnn.create_mesh_composer(device, config)
        return self._remember(made, (*self._parts(config), device.shape)[:2])

    def _remember(self, made: Any, parts: tuple[Any, ...]) -> Any:
        # ttnn does not give the parts back. The object is kept, too: another one could have its id.
        self._made_of[id(made)] = made, parts
        return made

    def _parts(self, made: Any) -> tuple[Any, ...]:
        return self._made_of[id(made)][1]

    def distribute_tensor(self, tensor: Any, mapper: Any) -> Any:
        """Distributes a tensor; of a promise, one that is as long as it has pieces, or whole along uneven dims."""
        if not isinstance(tensor, Promise):
            return self._ttnn.distribute_tensor(tensor, mapper=mapper)
        placements, sizes = self._parts(mapper)
        pieces = [1] * len(tensor.shape)
        for placement, size in zip(placements, sizes, strict=True):
            if isinstance(placement, self._ttnn.PlacementShard):
                pieces[placement.dim] *= int(size)
        whole = [n if n % count else count for n, count in zip(tensor.shape, pieces, strict=True)]
        parts = self._ttnn.distribute_tensor(self.make_zeros(whole, self._ttnn.DataType.UINT8), mapper=mapper)
        local = [n * one // thin for n, one, thin in zip(tensor.shape, parts.shape, whole, strict=True)]
        return Promise(local, tensor.dtype, tensor.layout, parts.tensor_topology())

    def aggregate_tensor(self, tensor: Any, composer: Any) -> Any:
        """Joins a distributed tensor; of a promise, its shape."""
        if not isinstance(tensor, Promise):
            return self._ttnn.aggregate_tensor(tensor, composer=composer)
        dims, sizes = self._parts(composer)
        shape = list(tensor.shape)
        for dim, size in zip(dims, sizes, strict=True):
            shape[dim] *= int(size)
        return Promise(shape, tensor.dtype, tensor.layout)

    def to_device(self, tensor: Any, device: Any, memory_config: Any = None) -> Any:
        """Moves a tensor to the devices; a promise becomes an empty one there."""
        if isinstance(tensor, Promise):
            return self.make_empty(tensor, tensor.layout, device, memory_config)
        return self._ttnn.to_device(tensor, device=device, memory_config=memory_config)

    def from_device(self, tensor: Any) -> Any:
        """Moves a tensor to the host; a large one becomes a promise there."""
        promise = Promise(tensor.shape, tensor.dtype, tensor.layout, tensor.tensor_topology())
        devices = math.prod(tensor.device().shape) if tensor.device() is not None else 1
        return promise if promise.bytes * devices > REAL_BYTES else self._ttnn.from_device(tensor)

    def to_layout(self, tensor: Any, layout: Any, dtype: Any = None, **options: Any) -> Any:
        """Changes a layout; of a promise, the layout and the element type that it would have."""
        if not isinstance(tensor, Promise):
            return self._with_real(self._ttnn.to_layout)(tensor, layout, dtype, **options)
        return Promise(tensor.shape, tensor.dtype if dtype is None else dtype, layout, tensor.topology)

    def reshape(self, tensor: Any, shape: Any, **options: Any) -> Any:
        """Reshapes a tensor; of a promise, the shape."""
        if not isinstance(tensor, Promise) or math.prod(shape) != math.prod(tensor.shape):
            return self._with_real(self._ttnn.reshape)(tensor, shape, **options)
        return Promise(shape, tensor.dtype, tensor.layout, tensor.topology)

    def conv2d(self, *, weight_tensor: Any, **options: Any) -> Any:
        """Convolves. Weights on the devices are as good on the host, where ttnn would arrange what it reads of each."""
        if isinstance(weight_tensor, self._ttnn.Tensor) and weight_tensor.device() is not None:
            weight_tensor = Promise(weight_tensor.shape, weight_tensor.dtype, weight_tensor.layout)
        return self._with_real(self._ttnn.conv2d)(weight_tensor=weight_tensor, **options)

    def deallocate(self, tensor: Any, *options: Any) -> None:
        """Deallocates a tensor; a promise holds nothing."""
        if not isinstance(tensor, Promise):
            self._ttnn.deallocate(tensor, *options)


_ON_PROMISES: dict[str, Callable[..., Any]] = {
    "MeshMapperConfig": Shapes.mapper_config,
    "MeshComposerConfig": Shapes.composer_config,
    "create_mesh_mapper": Shapes.create_mesh_mapper,
    "create_mesh_composer": Shapes.create_mesh_composer,
    "distribute_tensor": Shapes.distribute_tensor,
    "aggregate_tensor": Shapes.aggregate_tensor,
    "to_device": Shapes.to_device,
    "from_device": Shapes.from_device,
    "to_layout": Shapes.to_layout,
    "reshape": Shapes.reshape,
    "deallocate": Shapes.deallocate,
    "conv2d": Shapes.conv2d,
}


def use_shapes(utils: Any, shapes: Shapes) -> None:
    """Lets the program's own loader make inputs from their types, without reading its files."""

    def load_tensor(path: str, layout: Any, dtype: Any, device: Any, memory_config: Any, shape: Any) -> Any:
        if device is None:
            return shapes.make_host(shape, dtype)
        return shapes.make_empty(Promise(shape, dtype, layout), layout, device, memory_config)

    def load_sharded_tensor(path: str, layout: Any, dtype: Any, device: Any, memory_config: Any, shape: Any) -> Any:
        if memory_config is not None:
            return load_tensor(path, layout, dtype, device, memory_config, shape)
        pieces = [shapes.make_zeros(shape, dtype) for _ in range(math.prod(device.shape))]
        return shapes.from_host_shards(pieces, device.shape)

    utils.load_tensor, utils.load_sharded_tensor = load_tensor, load_sharded_tensor
    utils.load_constant = load_tensor
