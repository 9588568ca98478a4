"""Inputs with a shape and no values: ttnn allocates them on the devices; large host tensors stay promises.

A promise stands for a host tensor without data. The wrapped functions of ttnn accept promises for host tensors. A
promise that moves to the devices becomes an empty tensor of the same shape, layout and distribution.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

from jaxmesh.analysis.judge.runner.capture import Capture, OwnResult, read_own_result
from jaxmesh.analysis.judge.runner.watch import Watch

REAL_BYTES = 1 << 20
"""The largest host tensor that is allocated, in bytes; it is filled with zeros, and ttnn judges every step with it."""
_BYTES = {"BFLOAT16": 2, "FLOAT32": 4, "UINT32": 4, "INT32": 4, "UINT16": 2, "UINT8": 1, "INT8": 1}


class Promise:
    """A host tensor without data; after a distribution, `shape` is the local shape and `topology` the tensor's
    topology."""

    def __init__(self, shape: Sequence[int], dtype: Any, layout: object, topology: object = None) -> None:
        self.shape, self.dtype, self.layout, self.topology = tuple(map(int, shape)), dtype, layout, topology

    @property
    def bytes(self) -> int:
        """The bytes that it would take, on one device."""
        return math.prod(self.shape) * _BYTES.get(self.dtype.name, 4)


class Plans:
    """Has ttnn plan each call; equal calls on other tensors of the same type are made once.

    A call is made, and planned once more without dispatch, for ttnn reports the buffers of kernels in L1 only then. On
    described devices, equal calls have equal plans, and an empty tensor can stand for the result.
    """

    def __init__(self, ttnn: Any, watch: Watch) -> None:
        self._ttnn, self._watch = ttnn, watch
        self._known: dict[object, _Known | None] = {}
        """The calls that were made; None for a call that does more than to allocate its result."""

    def result(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[..., Any]
    ) -> Any:
        """Returns the result of `call`, or an empty tensor of the type that an equal call returned before."""
        if not self._watch.is_watching:
            return call(*args, **kwargs)
        key = function, self._key(args), self._key(kwargs)
        known = self._known.get(key)
        if known is not None:
            result = self._watch.repeat(known.call, lambda: self._make(known))
            if result is not None:
                return result
        if key in self._known:
            return call(*args, **kwargs)
        result, done = self._watch.measure(lambda: call(*args, **kwargs))
        kernel = self._watch.plan(lambda: call(*args, **kwargs))
        self._known[key] = self._read(result, done._replace(kernel=kernel))
        return result

    def _read(self, result: Any, done: Capture) -> _Known | None:
        if not isinstance(result, self._ttnn.Tensor) or result.device() is None:
            return None
        own = read_own_result(done, int(result.buffer_address()))
        return None if own is None else _Known(own, result.spec, result.tensor_topology(), result.device())

    def _make(self, known: _Known) -> Any:
        """Returns an empty tensor like the result of a known call; None if ttnn makes another one."""
        spec = known.spec
        options = {"dtype": spec.dtype, "layout": spec.layout, "memory_config": spec.memory_config}
        tensor = self._ttnn.empty(spec.shape, device=known.device, **options)
        if tensor.spec != spec:
            return None
        tensor.update_tensor_topology(known.topology)
        return tensor

    def _key(self, x: Any) -> Any:
        """Returns a key that is equal for equivalent arguments."""
        if isinstance(x, self._ttnn.Tensor):
            # Equal TensorSpecs have different hashes.
            kind = x.shape, x.padded_shape, x.dtype, x.layout, x.memory_config()
            return "tensor", *map(repr, (*kind, x.storage_type(), x.tensor_topology()))
        if isinstance(x, Promise):
            return "promise", x.shape, *map(repr, (x.dtype, x.layout))
        if type(x) is dict:
            return tuple(self._key(item) for item in cast("dict[str, object]", x).items())
        if type(x) in (list, tuple):
            return type(x).__name__, *map(self._key, cast("Sequence[object]", x))
        if x is None or isinstance(x, (bool, int, float, str, enum.Enum)):
            return type(x), repr(x)
        if (text := repr(x)) and " at 0x" not in text:
            return type(x), text
        fields = [(n, getattr(x, n)) for n in dir(x) if not n.startswith("_")]
        return type(x), *((n, self._key(v)) for n, v in fields if not callable(v))


class _Known(NamedTuple):
    """A call that was made, and the type of its result."""

    call: OwnResult
    spec: Any
    topology: object
    device: object


class Shapes:
    """A `ttnn` whose functions accept promises; with `plans`, equal calls are made once."""

    def __init__(self, ttnn: Any, inside: Any = None, plans: Plans | None = None) -> None:
        self._ttnn, self._inside, self._plans = ttnn, ttnn if inside is None else inside, plans
        self._made_of: dict[int, tuple[object, tuple[object, ...]]] = {}

    def plan_for(self, watch: Watch) -> None:
        """Makes equal calls once, and reports each call to a watch."""
        self._plans = Plans(self._ttnn, watch)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inside, name)
        if name in ("MeshMapperConfig", "MeshComposerConfig"):
            return functools.partial(self._make_config, name)
        if name in ("create_mesh_mapper", "create_mesh_composer"):
            return functools.partial(self._make_handle, name)
        if isinstance(attribute, ModuleType):
            return Shapes(self._ttnn, attribute, self._plans)
        return attribute if isinstance(attribute, type) or not callable(attribute) else self._with_real(attribute)

    def _with_real(self, function: Callable[..., object]) -> Callable[..., object]:
        """Wraps a function so that it receives promises as tensors of zeros."""

        def call(*args: Any, **kwargs: object) -> Any:
            return function(*map(self.as_real, args), **{k: self.as_real(v) for k, v in kwargs.items()})

        plans = self._plans
        return call if plans is None else lambda *args, **kwargs: plans.result(function, args, kwargs, call)

    # --- tensors ---

    def as_real(self, x: Any) -> object:
        """Returns a promise as a host tensor of zeros; returns any other argument unchanged."""
        if not isinstance(x, Promise):
            return x
        tensor = self.make_zeros(x.shape, x.dtype)
        return tensor if x.layout == self._ttnn.Layout.ROW_MAJOR else self._ttnn.to_layout(tensor, x.layout)

    def make_zeros(self, shape: Sequence[int], dtype: object) -> object:
        """Returns a row-major host tensor of zeros."""
        return self._ttnn.zeros(tuple(shape), dtype=dtype, layout=self._ttnn.Layout.ROW_MAJOR)

    def make_host(self, shape: Sequence[int], dtype: object) -> object:
        """Returns a host tensor of zeros, or a promise if it is large."""
        promise = Promise(shape, dtype, self._ttnn.Layout.ROW_MAJOR)
        return promise if promise.bytes > REAL_BYTES else self.as_real(promise)

    def make_empty(self, promise: Promise, layout: object, device: object, memory_config: object) -> object:
        """Returns an uninitialized tensor on the devices."""
        shape = self._ttnn.Shape(list(promise.shape))
        options = {} if memory_config is None else {"memory_config": memory_config}
        tensor = self._ttnn.empty(shape, dtype=promise.dtype, layout=layout, device=device, **options)
        if promise.topology is not None:
            tensor.update_tensor_topology(promise.topology)
        return tensor

    # --- functions that take promises ---

    def _make_config(self, name: str, parts: object, *shape: object) -> object:
        """Creates the config of a mapper or a composer, and remembers its parts."""
        return self._remember(getattr(self._ttnn, name)(parts, *shape), (parts, *shape))

    def _make_handle(self, name: str, device: Any, config: Any) -> object:
        """Creates a mapper or a composer, and remembers its config; the mesh shape defaults to the device's."""
        handle = getattr(self._ttnn, name)(device, config)
        return self._remember(handle, (*self._parts(config), device.shape)[:2])

    def _remember(self, handle: object, parts: tuple[object, ...]) -> object:
        # ttnn offers no getter for the parts. The object is kept, so that its id is not reused.
        self._made_of[id(handle)] = handle, parts
        return handle

    def _parts(self, handle: object) -> tuple[Any, ...]:
        return self._made_of[id(handle)][1]

    def distribute_tensor(self, tensor: Any, mapper: Any) -> Any:
        """Distributes a tensor.

        For a promise, distributes a small tensor with one element per shard along even dims, and the full size along
        uneven dims, to learn the local shape.
        """
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

    def aggregate_tensor(self, tensor: Any, composer: object) -> Any:
        """Joins a distributed tensor; for a promise, computes the global shape."""
        if not isinstance(tensor, Promise):
            return self._ttnn.aggregate_tensor(tensor, composer=composer)
        dims, sizes = self._parts(composer)
        shape = list(tensor.shape)
        for dim, size in zip(dims, sizes, strict=True):
            shape[dim] *= int(size)
        return Promise(shape, tensor.dtype, tensor.layout)

    def to_device(self, tensor: Any, device: object, memory_config: object = None) -> Any:
        """Moves a tensor to the devices; a promise becomes an empty tensor there."""
        if isinstance(tensor, Promise):
            return self.make_empty(tensor, tensor.layout, device, memory_config)
        return self._ttnn.to_device(tensor, device=device, memory_config=memory_config)

    def from_device(self, tensor: Any) -> Any:
        """Moves a tensor to the host; a large tensor becomes a promise there."""
        promise = Promise(tensor.shape, tensor.dtype, tensor.layout, tensor.tensor_topology())
        devices = math.prod(tensor.device().shape) if tensor.device() is not None else 1
        return promise if promise.bytes * devices > REAL_BYTES else self._ttnn.from_device(tensor)

    def to_layout(self, tensor: Any, layout: object, dtype: Any = None, **options: Any) -> Any:
        """Changes a layout; for a promise, sets its layout and element type."""
        if not isinstance(tensor, Promise):
            return self._with_real(self._ttnn.to_layout)(tensor, layout, dtype, **options)
        return Promise(tensor.shape, tensor.dtype if dtype is None else dtype, layout, tensor.topology)

    def reshape(self, tensor: Any, shape: Any, **options: object) -> Any:
        """Reshapes a tensor; for a promise, sets its shape."""
        if not isinstance(tensor, Promise) or math.prod(shape) != math.prod(tensor.shape):
            return self._with_real(self._ttnn.reshape)(tensor, shape, **options)
        return Promise(shape, tensor.dtype, tensor.layout, tensor.topology)

    def conv2d(self, *, weight_tensor: Any, **options: object) -> Any:
        """Calls `conv2d` with the weights on the host: for weights on the devices, ttnn would rearrange them at each
        call."""
        if isinstance(weight_tensor, self._ttnn.Tensor) and weight_tensor.device() is not None:
            weight_tensor = Promise(weight_tensor.shape, weight_tensor.dtype, weight_tensor.layout)
        return self._with_real(self._ttnn.conv2d)(weight_tensor=weight_tensor, **options)

    def deallocate(self, tensor: Any, *options: object) -> None:
        """Releases a tensor; a promise occupies no memory."""
        if not isinstance(tensor, Promise):
            self._ttnn.deallocate(tensor, *options)


def use_shapes(utils: Any, shapes: Shapes) -> None:
    """Replaces the program's loader: inputs are created from their types, without reading files."""

    def load_tensor(
        path: str, layout: object, dtype: object, device: object, memory_config: object, shape: Any
    ) -> object:
        if device is None:
            return shapes.make_host(shape, dtype)
        return shapes.make_empty(Promise(shape, dtype, layout), layout, device, memory_config)

    def load_sharded_tensor(
        path: str, layout: object, dtype: object, device: Any, memory_config: object, shape: Any
    ) -> object:
        if memory_config is not None:
            return load_tensor(path, layout, dtype, device, memory_config, shape)
        pieces = [shapes.make_zeros(shape, dtype) for _ in range(math.prod(device.shape))]
        return shapes.from_host_shards(pieces, device.shape)

    utils.load_tensor, utils.load_sharded_tensor = load_tensor, load_sharded_tensor
    utils.load_constant = load_tensor
