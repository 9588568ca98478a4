"""Exception types.

Every error of jaxmesh derives from `JaxmeshError` and from the builtin that a Python user expects. A message carries
the rule, both offending values and the remedy.
"""

from __future__ import annotations

from typing import Any


class JaxmeshError(Exception):
    """Base of every error that jaxmesh raises for a user's mistake."""


class ArgumentTypeError(JaxmeshError, TypeError):
    """An argument has the wrong Python type or an unknown spelling."""


class ArgumentValueError(JaxmeshError, ValueError):
    """An argument has the right type, and a value that no such argument has: a position or a number out of range."""


class MeshError(JaxmeshError, ValueError):
    """A mesh cannot be made, or is missing where one is needed."""


class DeviceCountError(MeshError):
    """There are fewer devices than the mesh needs, and it is too late to emulate more."""


class ForkError(MeshError, RuntimeError):
    """A process was forked from one that had devices, and has none that work."""


class MeshMismatchError(MeshError):
    """Two meshes meet in one program."""


class VerifyError(JaxmeshError, ValueError):
    """An operation breaks a rule of its dialect."""


class ParseError(JaxmeshError, ValueError):
    """A text is no MLIR, or not of a form that is read here; the message names the line."""


class SpecError(VerifyError):
    """A partition spec does not fit the mesh or the tensor."""


class ReplicationError(VerifyError):
    """A value is used as full although it still differs between devices (or the other way round).

    Found at run time, `difference` says where, and what both copies hold.
    """

    difference: Any = None


class ResidencyError(VerifyError):
    """A host tensor stands where TTNN needs a device tensor, or the other way round."""


class DeletedError(ResidencyError, RuntimeError):
    """An array or a tensor is used that was donated to a program, or deleted."""


class NotAddressableError(ResidencyError):
    """A shard is asked for that another process holds."""


class ProcessMismatchError(VerifyError):
    """The processes that share a mesh do not say the same where they must."""


class UnsupportedShardTypeError(VerifyError, NotImplementedError):
    """A shard type that neither TTNN nor jaxmesh can express (`maximal`)."""


class UnloweredError(JaxmeshError, NotImplementedError):
    """A TTIR or TTNN operation was executed outside a lowered program."""


class UnsupportedError(JaxmeshError, NotImplementedError):
    """Legal input that jaxmesh cannot express on the target."""


class InexpressibleError(UnsupportedError):
    """Legal in JAX and run as JAX runs it, but neither TTIR nor TTNN can say it; raised when the text is asked for."""


class MissingRuleError(JaxmeshError, NotImplementedError):
    """A primitive has no rule in one of the rooms; the message names the file to edit."""


class MissingFileError(JaxmeshError, FileNotFoundError):
    """A file to read does not exist, or cannot be read."""


class FolderError(JaxmeshError, FileExistsError):
    """A program cannot be exported there: something else is there already."""


class RecordingError(JaxmeshError, ValueError):
    """A file is no recording, or two recordings cannot be compared."""


class RecordingSizeError(RecordingError, MemoryError):
    """A recording would hold more bytes than it may."""


class AssumptionWarning(UserWarning):
    """A presharded argument is taken to be the same on several devices, because nothing in the file says over which."""


class ShardShapeWarning(UserWarning):
    """A file's `shard_shape` disagrees with its `shard_dims` and mesh; nothing reads it, so the program goes on."""


class BlockFloatWarning(UserWarning):
    """A file's block-float tensors are held as bfloat16, which represents every value of theirs exactly."""
