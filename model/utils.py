# Exported by jaxmesh.
"""What main.py needs beside ttnn: the mesh device, tensors from files, and the comparison with what is expected.

Runs on the real ttnn, and with `jaxmesh run` on the emulated one.
"""

import argparse
import ast
import contextlib
import math
import re
import sys
from pathlib import Path

import numpy as np
import ttnn

FOLDER = Path(__file__).resolve().parent
PASSED, FAILED, ERROR = 0, 1, 2

# Element types that the real ttnn does not have, and those that stand in there; tt-mlir takes the same ones. The
# emulated ttnn has them all. A stand-in has its own name, by which a second import of this file knows it.
STAND_INS = {"BOOL": "BFLOAT16", "FLOAT16": "FLOAT32", "FLOAT64": "FLOAT32", "INT64": "INT32"}
STOOD_FOR = {}
for _name, _other in STAND_INS.items():
    if getattr(getattr(ttnn.DataType, _name, None), "name", "") != _name:
        STOOD_FOR.setdefault(_other.lower(), []).append(_name.lower())
        setattr(ttnn.DataType, _name, getattr(ttnn.DataType, _other))

# The emulated ttnn has every element type, and computes each result in the very type of the program.
EVERY_TYPE = not STOOD_FOR

# How far a float may be from the expected one, as a part of the largest expected value, by the bits of its type.
TOLERANCES = {64: 1e-10, 32: 1e-4, 16: 2e-2, 8: 2.5e-1, 4: 5e-1}


class DeviceGetter:
    """The mesh device: opened once, the same for all who ask."""

    _device = None
    _whole = None
    _asked = None

    @classmethod
    def get_device(cls, mesh_shape, fabric_config=None):
        """The device of a mesh shape; another shape or fabric than the first time is an error."""
        asked = (tuple(mesh_shape), fabric_config)
        if cls._device is None:
            if fabric_config is not None:
                ttnn.set_fabric_config(fabric_config)
            cls._device, cls._whole = open_device(tuple(mesh_shape))
            cls._asked = asked
        elif asked != cls._asked:
            raise RuntimeError(f"the mesh device was opened for {cls._asked}, and is now asked for {asked}")
        return cls._device

    @classmethod
    def close(cls):
        """Closes the device if it is open."""
        opened, cls._device, cls._whole = (cls._device, cls._whole), None, None
        for device in opened:
            if device is not None:
                ttnn.close_mesh_device(device)


L1_SMALL = 65536  # bytes of each core's L1 for small buffers


def open_device(sizes):
    """The mesh device of a shape, and the one that it is a part of, if it is.

    A fabric runs on all devices of a machine or on none, so fewer devices are a part of the mesh of all of them.
    """
    # The emulated ttnn opens any part of its devices.
    available = ttnn.get_num_devices() if len(sizes) == 2 and not EVERY_TYPE else 0
    if not 1 < math.prod(sizes) < available:
        return ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(list(sizes)), l1_small_size=L1_SMALL), None
    whole = ttnn.open_mesh_device(l1_small_size=L1_SMALL)
    shape = tuple(whole.shape)
    others = [shape, shape[::-1], (1, available), (available, 1)]
    fits = [s for s in others if all(n <= m for n, m in zip(sizes, s, strict=True))]
    if fits and fits[0] != shape:
        whole.reshape(ttnn.MeshShape(list(fits[0])))
    return whole.create_submesh(ttnn.MeshShape(list(sizes))), whole


# --- inputs that are made ---

# How inputs are made instead of being loaded: from an element type and a shape; None if they are loaded.
making = None


def numpy_type(dtype):
    """The NumPy type of the arrays from which tensors of an element type are made."""
    name = name_of(dtype)
    if name in KNOWN:
        return np.dtype(name)
    if name == "bfloat16":
        return np.dtype(np.float32)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def zeros(dtype, shape):
    """Zeros."""
    return np.zeros(shape, numpy_type(dtype))


class Random:
    """Numbers that suit an element type: normal floats, integers from 0 to 9, which index most tables, and coins."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)

    def __call__(self, dtype, shape):
        name = name_of(dtype)
        if name == "bool":
            numbers = self.draw.integers(0, 2, shape)
        elif "int" in name:
            bits = int(re.search(r"\d+", name).group()) - (not name.startswith("u"))
            numbers = self.draw.integers(0, min(10, 2**bits), shape)
        else:
            numbers = self.draw.standard_normal(shape, np.float32)
        # The exponent-only type has no sign.
        return (np.abs(numbers) if name == "float8_e8m0fnu" else numbers).astype(numpy_type(dtype))


# --- tensors from files ---


def load_tensor(path, layout, dtype, device, memory_config, shape=None):
    """An input from a file, of this shape if one is given; on the host if there is no device."""
    with loading(path):
        tensor = from_numpy(read(path, dtype, shape) if making is None else making(dtype, shape), dtype)
        return place(tensor, layout, device, memory_config)


def load_constant(path, layout, dtype, device, memory_config, shape):
    """A constant from a file, of this shape, in its layout; on every device if there is one."""
    with loading(path):
        tensor = ttnn.to_layout(from_numpy(read(path, dtype, shape), dtype), layout)
        return tensor if device is None else ttnn.to_device(tensor, device=device, memory_config=memory_config)


def load_sharded_tensor(path, layout, dtype, device, memory_config, shape=None):
    """An input of several devices from a file of one piece, of this shape, per device, row-major over the mesh."""
    with loading(path):
        count = math.prod(device.shape)
        if making is None:
            array = read(path, dtype, None if shape is None else (count, *shape))
        else:
            # The devices may be taken to hold copies.
            array = np.broadcast_to(making(dtype, shape), (count, *shape))
        if array.shape[:1] != (count,):
            raise ValueError(f"the shape is {list(array.shape)}, expected one piece for each of {count} devices")
        pieces = [from_numpy(piece, dtype) for piece in array]
        tensor = ttnn.from_host_shards(pieces, ttnn.MeshShape(list(device.shape)))
        return place(tensor, layout, None if memory_config is None else device, memory_config)


def place(tensor, layout, device, memory_config):
    """The tensor on the device, if there is one, and in its layout."""
    if device is not None:
        tensor = ttnn.to_device(tensor, device=device, memory_config=memory_config)
    if layout != ttnn.Layout.ROW_MAJOR:
        tensor = ttnn.to_layout(tensor, layout)
    return tensor


@contextlib.contextmanager
def loading(path):
    """Ends the program with a line on stderr if the file cannot be loaded: that is no result that differs."""
    try:
        yield
    except Exception as error:
        DeviceGetter.close()
        print(f"{path} cannot be read: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        raise SystemExit(ERROR) from None


def read(path, dtype, shape=None):
    """The array in a file of this folder, which must be of this shape; types NumPy does not know are raw bits there."""
    array, name = raw(path, [name_of(dtype), *STOOD_FOR.get(name_of(dtype), ())], shape)
    if name == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return np.left_shift(array, 16, dtype=np.uint32).view(np.float32)
    if name not in KNOWN:
        import ml_dtypes

        return array.view(getattr(ml_dtypes, name))
    if name == "int64" and dtype == ttnn.DataType.INT32 and np.any(array != array.astype(np.int32)):
        raise ValueError("it holds numbers of 64 bits, which this ttnn does not have")
    return array


def raw(path, names, shape):
    """The array of a file as it is stored there, and which of some element types that is.

    `np.load` takes more than what is exported: other types, orders and shapes, and bytes that follow.
    """
    with (FOLDER / path).open("rb") as file:
        # Memory that may be written to, so that the array needs no copy of it.
        data = bytearray(file.seek(0, 2))
        file.seek(0)
        file.readinto(data)
    descr, fortran, found, begin = header(data)
    stored = {stored_as(n): n for n in reversed(names)}
    if descr not in stored:
        raise ValueError(f"the element type is {descr!r}, but {names[0]} is stored as {' or '.join(map(repr, stored))}")
    if shape is not None and found != tuple(shape):
        raise ValueError(f"the shape is {list(found)}, expected {list(shape)}")
    if fortran and len(found) > 1:
        raise ValueError("the order is by columns (fortran_order is True), expected by rows (False)")
    size, wanted = len(data) - begin, math.prod(found) * np.dtype(descr).itemsize
    if size != wanted:
        raise ValueError(f"it has {size} bytes of numbers, expected {wanted} for the shape {list(found)}")
    return np.ndarray(found, descr, data, begin), stored[descr]


def header(data):
    """What the header of a `.npy` file says: element type, whether by columns, shape, and where it ends."""
    width = {1: 2, 2: 4, 3: 4}.get(data[6] if len(data) > 6 else None)
    if data[:6] != b"\x93NUMPY" or width is None or len(data) < 8 + width:
        raise ValueError(f"it is no .npy file: it has {len(data)} bytes and begins with {bytes(data[:8])!r}")
    begin = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if begin > len(data):
        raise ValueError(f"it has {len(data)} bytes, but its header alone has {begin}")
    try:
        said = ast.literal_eval(data[8 + width : begin].decode().strip())
        descr, fortran, shape = said["descr"], said["fortran_order"], said["shape"]
        good = type(descr) is str and type(fortran) is bool and all(type(n) is int and n >= 0 for n in shape)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        good = False
    if not good or type(shape) is not tuple:
        raise ValueError(f"its header is not one of an array: {bytes(data[8 + width : begin])[:100]!r}")
    return descr, fortran, shape, begin


KNOWN = {"bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
         "float16", "float32", "float64", "complex64", "complex128"}  # fmt: skip


def stored_as(name):
    """How a `.npy` file names an element type: little-endian, and raw bits for those that NumPy does not know."""
    if name in KNOWN:
        return np.dtype(name).newbyteorder("<").str
    return "<u2" if name == "bfloat16" else "|u1"


def from_numpy(array, dtype):
    """A host tensor with the values of an array, row by row."""
    return ttnn.Tensor(np.require(array, requirements="CAW"), dtype)


def to_numpy(tensor):
    """The values of a tensor of one device."""
    if EVERY_TYPE:
        return np.asarray(tensor)
    if tensor.dtype == ttnn.DataType.BFLOAT16:
        # NumPy has no bfloat16.
        tensor = ttnn.to_dtype(tensor, ttnn.DataType.FLOAT32)
    return tensor.to_numpy()


def pieces_of(tensor):
    """What each device holds, row-major over the mesh."""
    return np.stack([to_numpy(piece) for piece in ttnn.get_device_tensors(ttnn.from_device(tensor))])


def name_of(dtype):
    """The name of an element type: `float32`."""
    return dtype.name.lower()


# --- results ---


class Expected:
    """What a result should be: a file, its element type, whether it holds a piece per device, whether bit for bit.

    `bits` are those of the narrowest floats computed on the way to it, where these are narrower than its own type.
    """

    def __init__(self, path, dtype, sharded, exact, bits=0):
        self.path, self.dtype, self.sharded, self.exact, self.bits = path, dtype, sharded, exact, bits


def arguments(make_inputs=None):
    """The command line; inputs are made as it says, else as `make_inputs` does."""
    global making
    parser = argparse.ArgumentParser(description="Runs the program on the tensors of this folder, or on made ones.")
    parser.add_argument(
        "--check", action="store_true", help="compare the results with the expected ones; exit code 1 if one differs"
    )
    parser.add_argument(
        "--make-inputs", choices=("zeros", "random"), default=make_inputs, help="make the inputs instead of loading them"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs; 0 by default")
    asked = parser.parse_args()
    if asked.check and asked.make_inputs:
        print("--check has nothing to compare with: inputs are made, and no file has their results", file=sys.stderr)
        raise SystemExit(ERROR)
    making = {None: None, "zeros": zeros, "random": Random(asked.seed)}[asked.make_inputs]
    return asked


def report(results, expected, asked):
    """Prints a line per result and closes the device; gives the exit code."""
    try:
        lines = [line(i, r, e, asked.check) for i, (r, e) in enumerate(zip(results, expected, strict=True))]
    finally:
        DeviceGetter.close()
    return PASSED if all(lines) else FAILED


def line(number, result, expected, check):
    """Prints the line of one result; gives whether it is as expected."""
    what = f"result {number}: {name_of(expected.dtype)}{list(result.shape)}"
    what += " on each device" if expected.sharded else ""
    if not check:
        print(what)
        return True
    got = pieces_of(result) if expected.sharded else to_numpy(result)
    name = name_of(expected.dtype)
    if EVERY_TYPE and str(got.dtype) != name:
        passed, why = False, f"the element type is {got.dtype}, expected {name}"
    else:
        with loading(expected.path):
            want = read(expected.path, expected.dtype, got.shape)
        passed, why = compare(got, want, expected)
    print(f"{what}: {'ok' if passed else 'FAILED'}, {why}")
    return passed


def compare(got, want, expected):
    """Whether two arrays of one shape agree, and a phrase about it."""
    name = name_of(expected.dtype)
    exact = expected.exact or want.dtype.kind in "biu" or not re.match("b?float|complex", name)
    wrong, largest, scale = 0, 0.0, 1.0
    for a, b in pairs(got, want):
        both_nan = (a != a) & (b != b)
        same = (a == b) | both_nan
        if exact:
            if a.dtype.kind == b.dtype.kind == "f":
                same &= both_nan | (np.signbit(a) == np.signbit(b))
            wrong += int(np.count_nonzero(~same))
            continue
        scale = max(scale, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
        apart = np.abs(np.where(same, 0, a) - np.where(same, 0, b))
        # The difference to a NaN is a NaN, which remains the largest and is not below anything.
        largest = float(np.maximum(largest, apart.max(initial=0.0)))
    if exact:
        return wrong == 0, "equal" if wrong == 0 else f"{wrong} of {want.size} elements differ"
    allowed = tolerance(name, expected.bits) * scale
    return largest <= allowed, f"largest difference {largest:.3g}, allowed {allowed:.3g}"


def pairs(got, want, length=2**16):
    """The numbers of two arrays to compare, in pieces that fit a processor's cache."""
    a, b = got.reshape(-1), want.reshape(-1)
    for begin in range(0, b.size, length):
        yield numbers(a[begin : begin + length]), numbers(b[begin : begin + length])


def tolerance(name, bits=0):
    """The part of the largest value by which a float of this type may differ, or one of so many bits."""
    own = int(re.search(r"\d+", name).group())
    return TOLERANCES[bits or (own // 2 if "complex" in name else own)]


def numbers(array):
    """Values to compare: wide floats for narrow ones, integers as they are."""
    if array.dtype.kind in "biu":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
