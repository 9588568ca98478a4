"""Names of `ttnn` that say how something is computed or connected. They are taken everywhere and change no value."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from jaxmesh.errors import ArgumentTypeError
from jaxmesh.validate import quote


class MathFidelity(enum.Enum):
    """How many passes the hardware's multiplier makes."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4


@dataclass(frozen=True, slots=True)
class WormholeComputeKernelConfig:
    """How a kernel computes; kept, and without a meaning here: results are rounded as JAX rounds them."""

    math_fidelity: MathFidelity = MathFidelity.LoFi
    math_approx_mode: bool = True
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False
    dst_full_sync_en: bool = False
    throttle_level: Any = None


BlackholeComputeKernelConfig = WormholeComputeKernelConfig


def init_device_compute_kernel_config(arch: Any = None, *args: Any, **settings: Any) -> Any:
    """A compute kernel config with these settings; kept, and without a meaning here.

    Args:
      arch: taken, and means nothing here.
      *args: the same.
      **settings: those of `WormholeComputeKernelConfig`.

    Raises:
      ArgumentTypeError: a setting that it has not.
    """
    try:
        return WormholeComputeKernelConfig(**settings)
    except TypeError:
        raise ArgumentTypeError(
            f"init_device_compute_kernel_config takes the settings {list(WormholeComputeKernelConfig.__slots__)}, got "
            f"{quote(list(settings))}."
        ) from None


class SigmoidMode(enum.Enum):
    """Which approximation of the sigmoid a kernel uses; here it is always the accurate one."""

    Accurate = 0
    FastApproximate = 1


class Topology(enum.Enum):
    """How the devices of a mesh axis are wired."""

    Ring = 0
    Linear = 1
    Mesh = 2
    Torus = 3


class ReduceType(enum.Enum):
    """What a collective does with the values of several devices."""

    Sum = 0
    Mean = 1
    Max = 2
    Min = 3
    Std = 4
    Var = 5
    Prod = 6


class FabricConfig(enum.Enum):
    """How the devices talk to each other."""

    DISABLED = 0
    FABRIC_1D = 1
    FABRIC_1D_RING = 2
    FABRIC_2D = 3
    FABRIC_2D_TORUS_X = 4
    FABRIC_2D_TORUS_Y = 5
    FABRIC_2D_TORUS_XY = 6
    CUSTOM = 7


_fabric = [FabricConfig.DISABLED]


def set_fabric_config(config: FabricConfig | None, *args: Any, **kwargs: Any) -> None:
    """Says how the devices talk to each other, before the device is opened; every device reaches every other here.

    Args:
      config: the fabric; None is DISABLED.
      *args: taken, and mean nothing here.
      **kwargs: taken, and mean nothing here.

    Raises:
      ArgumentTypeError: no `FabricConfig`.
    """
    if config is not None and not isinstance(config, FabricConfig):
        raise ArgumentTypeError(f"set_fabric_config takes a FabricConfig, got {quote(config)}.")
    _fabric[0] = config or FabricConfig.DISABLED


def get_fabric_config() -> FabricConfig:
    """What `set_fabric_config` said last."""
    return _fabric[0]
