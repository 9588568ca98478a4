"""Cores of one device, and shard specs of tensors over them. They change no value."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxmesh.sharding.configs import integers
from jaxmesh.tensor.types import BufferType, MemoryConfig, TensorMemoryLayout
from jaxmesh.validate import as_instance


@dataclass(frozen=True, slots=True)
class CoreGrid:
    """A grid of cores; kept and ignored."""

    y: int
    x: int

    @property
    def num_cores(self) -> int:
        """The number of cores."""
        return self.y * self.x


@dataclass(frozen=True, slots=True)
class CoreCoord:
    """One core of a device."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class CoreRange:
    """The cores between two corners, both included."""

    start: CoreCoord
    end: CoreCoord


@dataclass(frozen=True, slots=True, init=False)
class CoreRangeSet:
    """Several ranges of cores."""

    ranges: tuple[CoreRange, ...]

    def __init__(self, ranges: Any) -> None:
        object.__setattr__(self, "ranges", (ranges,) if isinstance(ranges, CoreRange) else tuple(ranges))


class ShardOrientation(enum.Enum):
    """The order of cores along the shards of a tensor."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class ShardStrategy(enum.Enum):
    """The dims of a tensor that are cut over the cores of a device."""

    HEIGHT = 1
    WIDTH = 2
    BLOCK = 3


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The shards of a tensor over the cores of a device; kept and ignored."""

    grid: Any
    shape: Any
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR


def create_sharded_memory_config(
    shape: Sequence[int],
    core_grid: CoreGrid | CoreRangeSet,
    strategy: ShardStrategy,
    orientation: ShardOrientation | None = None,
    use_height_and_width_as_shard_shape: bool = False,
) -> MemoryConfig:
    """Returns the memory config of a tensor that is cut over the cores of a device; kept and shown.

    Args:
      shape: of the tensor, or of its shard on one core.
      core_grid: the cores.
      strategy: which dims are cut.
      orientation: the order in which cores get the shards.
      use_height_and_width_as_shard_shape: whether `shape` is that of a shard.

    Raises:
      ArgumentTypeError: wrong types.

    >>> from jaxmesh import ttnn
    >>> config = ttnn.create_sharded_memory_config([64, 32], ttnn.CoreGrid(y=2, x=1), ttnn.ShardStrategy.HEIGHT)
    >>> config.memory_layout, config.is_sharded()
    (<TensorMemoryLayout.HEIGHT_SHARDED: 2>, True)
    """
    what = "create_sharded_memory_config"
    grid = as_instance((CoreGrid, CoreRangeSet), what, "core_grid", core_grid)
    name = as_instance(ShardStrategy, what, "strategy", strategy).name
    order = as_instance(ShardOrientation, what, "orientation", orientation or ShardOrientation.ROW_MAJOR)
    spec = ShardSpec(grid, integers(what, shape), order)
    return MemoryConfig(TensorMemoryLayout[f"{name}_SHARDED"], BufferType.L1, spec)
