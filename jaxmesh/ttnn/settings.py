"""Settings of `ttnn` for kernels and for the fabric between devices. They change no value."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from jaxmesh.errors import ArgumentTypeError
from jaxmesh.validate import quote


class MathFidelity(enum.Enum):
    """The number of passes of the hardware's multiplier."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4


@dataclass(frozen=True, slots=True)
class WormholeComputeKernelConfig:
    """Settings of a kernel; kept and ignored: JAX rounds the results."""

    math_fidelity: MathFidelity = MathFidelity.LoFi
    math_approx_mode: bool = True
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False
    dst_full_sync_en: bool = False
    throttle_level: object = None


BlackholeComputeKernelConfig = WormholeComputeKernelConfig


class SigmoidMode(enum.Enum):
    """The approximation of the sigmoid in a kernel; here always the accurate one."""

    Accurate = 0
    FastApproximate = 1


class GeluVariant(enum.Enum):
    """The form of gelu; its gradient differs between the first and the last."""

    Accurate = 0
    FastLut = 1
    Tanh = 2


class EmbeddingsType(enum.Enum):
    """An embedding's knowledge of its indices; always empty here."""

    GENERIC = 0
    PADDED = 1
    BINARY = 2


class Topology(enum.Enum):
    """The wiring of the devices along a mesh axis."""

    Ring = 0
    Linear = 1
    Mesh = 2
    Torus = 3


class ReduceType(enum.Enum):
    """The reduction of a collective over the values of several devices."""

    Sum = 0
    Mean = 1
    Max = 2
    Min = 3
    Std = 4
    Var = 5
    Prod = 6


class DumpTensorMode(enum.Enum):
    """The part of a tensor that several processes write; always all of it here."""

    DISTRIBUTED_GATHER = 0
    LOCAL = 1


class FabricConfig(enum.Enum):
    """The fabric between the devices."""

    DISABLED = 0
    FABRIC_1D = 1
    FABRIC_1D_RING = 2
    FABRIC_2D = 3
    FABRIC_2D_TORUS_X = 4
    FABRIC_2D_TORUS_Y = 5
    FABRIC_2D_TORUS_XY = 6
    CUSTOM = 7


def set_fabric_config(
    config: FabricConfig | None,
    reliability_mode: object = None,
    num_planes: int | None = None,
    fabric_tensix_config: object = None,
    fabric_udm_mode: object = None,
    fabric_manager_mode: object = None,
    router_config: object = None,
) -> None:
    """Sets the fabric between the devices; every emulated device reaches every other.

    Args:
      config: the fabric; None is DISABLED.
      reliability_mode: accepted and ignored, as the following ones are.
      num_planes: ignored.
      fabric_tensix_config: ignored.
      fabric_udm_mode: ignored.
      fabric_manager_mode: ignored.
      router_config: ignored.

    Raises:
      ArgumentTypeError: no `FabricConfig`.
    """
    if config is not None and not isinstance(config, FabricConfig):
        raise ArgumentTypeError(f"set_fabric_config takes a FabricConfig, got {quote(config)}.")
