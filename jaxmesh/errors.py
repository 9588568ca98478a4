"""The exceptions and warnings of jaxmesh.

Every error derives from `JaxmeshError` and from the builtin that a Python user expects. A message carries the rule,
both offending values and the remedy. Its text stands where the rule is checked; to change one, search for a few words
of it.
"""

from __future__ import annotations

import re
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Replaces control characters and characters that change the direction of text by escapes.

    A name of a text that is printed to a terminal could otherwise control it.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text)


_LONG, _LONGEST = re.compile(r"\S{700,}"), 20_000


def _message(text: str) -> str:
    """Returns text without control characters, and long words, or a long text, as their ends."""
    short = _LONG.sub(lambda word: f"{word[0][:200]}[...]{word[0][-100:]}", printable(text))
    return short if len(short) <= _LONGEST else f"{short[: _LONGEST // 2]} [...] {short[-_LONGEST // 4 :]}"


class PrintableError(Exception):
    """An exception whose message is safe to print to a terminal."""

    def __init__(self, *args: str) -> None:
        super().__init__(*(_message(a) if isinstance(a, str) else a for a in args))


class JaxmeshError(PrintableError):
    """Base of every error that jaxmesh raises for a user's mistake."""


class ArgumentTypeError(JaxmeshError, TypeError):
    """An argument has the wrong Python type, or an option an unknown spelling."""


class ArgumentValueError(JaxmeshError, ValueError):
    """An argument has the right type but an invalid value: a position or a number out of range."""


class MeshError(JaxmeshError, ValueError):
    """No mesh is given or set where one is needed, or its shape or axis names are invalid."""


class DeviceCountError(MeshError):
    """There are too few devices, and it is too late to emulate more; the message names the cause and two remedies."""


class ForkError(MeshError, RuntimeError):
    """A process was forked from one that had devices; its own do not work."""


class MeshMismatchError(MeshError):
    """Two meshes meet in one program."""


class VerifyError(JaxmeshError, ValueError):
    """An operation breaks a rule of its dialect: attributes contradict each other, the mesh or the tensor."""


class ParseError(JaxmeshError, ValueError):
    """A text is not MLIR, or not in a form that can be imported; the message names the line."""


class SpecError(VerifyError):
    """A partition spec names an unknown axis, an axis twice, or too many dims."""


class ReplicationError(VerifyError):
    """A value is used as full although it still differs between devices (or the other way round).

    For a difference found at run time, `difference` gives its coordinates and the values of both copies.
    """

    difference: Any = None


class ResidencyError(VerifyError):
    """TTNN needs a device tensor and gets a host tensor, or the other way round."""


class DeletedError(ResidencyError, RuntimeError):
    """An array or a tensor is used after it was donated to a program or deleted."""


class NotAddressableError(ResidencyError):
    """A shard is requested that belongs to another process; the message names it."""


class ProcessMismatchError(VerifyError):
    """The processes that share a mesh run different programs, or pass different values where they must be equal."""


class UnsupportedShardTypeError(VerifyError, NotImplementedError):
    """A shard type that neither TTNN nor jaxmesh can express (`maximal`)."""


class UnloweredError(JaxmeshError, NotImplementedError):
    """`mesh_shard` or a TTNN operation is executed outside a lowered program."""


class UnsupportedError(JaxmeshError, NotImplementedError):
    """Legal input that jaxmesh cannot express on the target."""


class InexpressibleError(UnsupportedError):
    """Legal in JAX, and run by JAX, but inexpressible in TTIR and TTNN; raised when the text is requested."""


class MissingRuleError(JaxmeshError, NotImplementedError):
    """A primitive or an op has no rule; the message names the file to edit."""


class MissingFileError(JaxmeshError, FileNotFoundError):
    """A file to read does not exist, or cannot be read."""


class FolderError(JaxmeshError, FileExistsError):
    """A program cannot be exported into a folder that holds something else."""


class RecordingError(JaxmeshError, ValueError):
    """A file is not a recording, or two recordings have nothing in common."""


class RecordingSizeError(RecordingError, MemoryError):
    """A recording would exceed its limit of bytes."""


class TtnnError(JaxmeshError, RuntimeError):
    """The real `ttnn` cannot judge a program: it is missing or of another version, or ended without a verdict."""


class ChipError(JaxmeshError, RuntimeError):
    """The simulated chip cannot run a program: it is missing, lacks a part, or does not start."""


class UpstreamError(JaxmeshError, RuntimeError):
    """Tenstorrent's compiler cannot be asked: it is missing, does not start, crashed, or took too long."""


class JaxmeshWarning(PrintableError, UserWarning):
    """Base of the warnings."""


class UntestedJaxWarning(JaxmeshWarning):
    """jaxmesh was imported with a JAX that is newer than those it is tested with."""


class AssumptionWarning(JaxmeshWarning):
    """A presharded argument is assumed equal on several devices, because the file does not name its mesh axes."""


class ShardShapeWarning(JaxmeshWarning):
    """A file's `shard_shape` disagrees with its `shard_dims` and mesh; it is not used, so the import continues."""


class DeviationWarning(JaxmeshWarning):
    """An operation of a file is not in the form that upstream defines; it is read as in earlier versions."""


class ShardingWarning(JaxmeshWarning):
    """Something that was asked for about shardings is not kept, or costs more than it may seem."""


class DroppedShardingWarning(ShardingWarning):
    """A sharding does not divide a dim, so a nearer one was taken."""


class ReplicatedProgramWarning(ShardingWarning):
    """Shardings were asked for, and yet every device computes everything."""


class AllGatherWarning(ShardingWarning):
    """A reshard gathers a large value on every device."""


class RedundantReductionWarning(ShardingWarning):
    """A value is summed over a mesh axis that it does not vary over, which multiplies it."""


class DonationWarning(ShardingWarning):
    """A donated argument's memory cannot be reused."""


class MemoryKindWarning(ShardingWarning):
    """A kind of memory, a layout or work on the host is asked for, which TTIR has no attribute for."""


class UnrolledLoopWarning(JaxmeshWarning):
    """A loop makes so many operations in a text that it is long to read, to compile and to load."""


class BlockFloatWarning(JaxmeshWarning):
    """A file's block-float tensors are stored as bfloat16, which represents each of their values exactly."""
