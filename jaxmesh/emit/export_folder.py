"""The exported folder: the programs as text, the tensors they load, and the expected results."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np

from jaxmesh.dialects.program import Port, Program
from jaxmesh.emit.languages import CONSTANT_LIMIT, StoredConstants
from jaxmesh.emit.python.printer import python_source
from jaxmesh.errors import ArgumentTypeError, FolderError, MissingFileError
from jaxmesh.jaxprs.untyped import Array
from jaxmesh.validate import ASIDE, folder_aside, write_whole

LOCATIONS = "locations.json"
MARK = "# Exported by jaxmesh."
"""The first line of `utils.py`, which marks an exported folder."""


def write_folder(
    directory: str | os.PathLike[str],
    program: Program,
    *,
    texts: Mapping[str, str],
    inputs: Sequence[Array],
    expected: Sequence[Array],
    exact: bool | Sequence[bool],
    bits: Sequence[int] = (),
    python: bool = True,
    constant_limit: int = CONSTANT_LIMIT,
    make_inputs: str | None = None,
) -> list[Path]:
    """Writes `main.py`, `utils.py`, `locations.json`, `tensors/*.npy` and the given texts.

    An exported folder is overwritten; other files in it are kept. All files are written to a temporary folder
    first, so that a failure leaves the old files, and `manifest.json` lists them, so that readers refuse the files of
    two exports.

    Args:
      directory: the folder; created with its parents if missing.
      program: a flat program of TTNN ops, printed as `main.py`.
      texts: other files by name, `main.cpp` for one.
      inputs: one array per argument; for a presharded argument the shards of all devices, stacked row-major over the
        mesh.
      expected: one array per result, likewise.
      exact: True if results must be equal bit for bit, as after pure data movement; one value per
        result, or one for all.
      bits: for each result, the bits of the float type whose rounding is allowed; 0 for the result's type.
      python: True to write `main.py`, with its `utils.py` and `locations.json`.
      constant_limit: the largest constant that texts spell, in elements; others are files in `tensors`.
      make_inputs: the values of inputs that the program creates, `"zeros"` or `"random"`; then the folder contains
        neither inputs nor expected results.
    """
    target = Path(directory).absolute()
    try:
        _check_target(target)
        constants = StoredConstants(program, constant_limit)
        tensors = {
            **{f"{name}.npy": array for name, array in constants.arrays.items()},
            **({} if make_inputs else _tensors("arg", "argument", program, program.arguments, inputs)),
            **({} if make_inputs else _tensors("expected", "result", program, program.results, expected)),
        }
        files = dict(texts)
        if python:
            files |= python_files(program, exact, bits, constants, make_inputs)
        with folder_aside(target) as stage_folder:
            names = _write(stage_folder, files, tensors)
            _move(stage_folder, target, names)
        return sorted(target / name for name in names)
    except FolderError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise FolderError(f"{str(directory)!r} cannot be written ({why}); name another folder.") from error


def python_files(
    program: Program,
    exact: bool | Sequence[bool] = False,
    bits: Sequence[int] = (),
    constants: StoredConstants | None = None,
    make_inputs: str | None = None,
) -> dict[str, str]:
    """Returns the texts of `main.py`, `utils.py` and `locations.json`: the source location of each line of
    `main.py`."""
    main, source_lines = python_source(program, constants, load=True, exact=exact, bits=bits, make_inputs=make_inputs)
    return {"main.py": main, "utils.py": utils_text(), LOCATIONS: json.dumps(source_lines, indent=0) + "\n"}


def utils_text() -> str:
    """Returns the text of `utils.py`, which emitted Python imports."""
    return (resources.files("jaxmesh.emit") / "python" / "utils.py.txt").read_text(encoding="utf-8")


def stored(array: Array) -> Array:
    """Returns an array as its file stores it: little-endian, row-major, with raw bits for types that NumPy does not
    know."""
    contiguous = np.asarray(array, order="C")
    contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="), copy=False)
    if contiguous.dtype.isbuiltin != 1:
        return contiguous.view(f"<u{contiguous.dtype.itemsize}")
    return contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)


def _check_target(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        raise FolderError(f"a program is exported into a folder, but {str(target)!r} is a file; name another path.")
    if not _ours(target):
        raise FolderError(
            f"the folder {str(target)!r} has files in it that no export wrote; name an empty or a new folder, or "
            "remove them."
        )


OURS = ("main.py", "utils.py", LOCATIONS, "main.cpp", "ttir.mlir", "ttnn.mlir")
"""The files that an export may write beside `tensors`; an old file would not fit the new tensors."""


def _ours(target: Path) -> bool:
    """Returns True if exports alone wrote into a folder, killed exports included."""
    utils, manifest = target / "utils.py", target / MANIFEST
    if all(path.name.startswith(ASIDE) for path in target.iterdir()):
        return True
    if manifest.is_file() and _FORMAT.encode() in manifest.read_bytes():
        return True
    if (target / "main.cpp").is_file() and (target / "ttnn.mlir").is_file() and (target / "tensors").is_dir():
        return True
    return utils.is_file() and utils.read_bytes().partition(b"\n")[0].rstrip() == MARK.encode()


def _tensors(
    name: str, what: str, program: Program, ports: Sequence[Port], arrays: Sequence[Array]
) -> dict[str, Array]:
    devices = int(np.prod(list(program.mesh.values()), dtype=int))
    by_file: dict[str, Array] = {}
    for number, (port, array) in enumerate(zip(ports, arrays, strict=True)):
        tensor_type = program.types[port.value]
        shape, dtype = (devices, *tensor_type.shape) if port.presharded else tensor_type.shape, tensor_type.dtype
        if array.shape != shape or array.dtype != dtype:
            stacked = " (the shards of all devices, stacked)" if port.presharded else ""
            got = f"{array.dtype}{list(array.shape)}"
            raise ArgumentTypeError(f"{what} {number} is {dtype}{list(shape)}{stacked}, got an array {got}.")
        by_file[f"{name}{number}.npy"] = array
    return by_file


def _write(folder: Path, files: Mapping[str, str], tensors: Mapping[str, Array]) -> list[str]:
    """Writes all files into a new folder; returns their names."""
    (folder / "tensors").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for name, array in tensors.items():
        np.save(folder / "tensors" / name, stored(array), allow_pickle=False)
    return [*files, *(f"tensors/{name}" for name in tensors)]


_NUMBERED = re.compile(r"(arg|constant|expected)[0-9]+\.npy")


def _move(stage_folder: Path, target: Path, names: Sequence[str]) -> None:
    """Moves the files of a new export to a folder.

    The manifest says so before the first file moves: readers refuse the folder until all are there, also after a kill.
    Programs are absent meanwhile, since a Python or a compiler may read them without the manifest.
    """
    # The program in the other language is still valid if it is the same program with the same numbers.
    numbers = [n for n in names if n == "ttnn.mlir" or n.startswith("tensors/")]
    same = all((target / n).is_file() and (stage_folder / n).read_bytes() == (target / n).read_bytes() for n in numbers)
    kept = [n for n in OURS if same and n not in names and (target / n).is_file()]
    files = {n: stage_folder / n for n in names} | {n: target / n for n in kept}
    entries = {name: [path.stat().st_size, _checksum(path)] for name, path in sorted(files.items())}
    manifest = json.dumps({"format": _FORMAT, "version": _VERSION, "files": entries}, indent=1) + "\n"
    write_whole(target / MANIFEST, _INTERRUPTED)
    for name in OURS:
        if name not in kept and (name not in names or name.startswith("main.")):
            (target / name).unlink(missing_ok=True)
    if (target / "tensors").is_file():
        (target / "tensors").unlink()
    (target / "tensors").mkdir(exist_ok=True)
    for old in (target / "tensors").iterdir():
        if f"tensors/{old.name}" not in names and _NUMBERED.fullmatch(old.name):
            old.unlink()
    for name in sorted(names, key=lambda name: name.startswith("main.")):
        os.replace(stage_folder / name, target / name)
    shutil.rmtree(target / "__pycache__", ignore_errors=True)
    write_whole(target / MANIFEST, manifest)


# --- the manifest ----------------------------------------------------------------------------------------------------

MANIFEST = "manifest.json"
"""The file that lists the others with their sizes and checksums."""
_VERSION, _FORMAT = 1, "jaxmesh export"
_INTERRUPTED = json.dumps({"format": _FORMAT, "version": _VERSION, "interrupted": True}) + "\n"
"""The manifest while the files are moved."""


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def check_folder(folder: Path, *, tensors: bool = True) -> None:
    """Checks that a folder has the files of one export; a folder without a manifest is not checked.

    Programs and expected results may be changed by hand; inputs and constants are as they were exported.

    Args:
      folder: the exported folder.
      tensors: False if the program creates its tensors, so that the files may be missing.

    Raises:
      MissingFileError: an export was interrupted, or a tensor is missing or another one.
    """
    try:
        listed: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, RecursionError) as error:
        raise MissingFileError(f"{str(folder / MANIFEST)!r} cannot be read ({error}); {_AGAIN}.") from None
    fields = cast("dict[str, Any]", listed) if isinstance(listed, dict) else {}
    if fields.get("interrupted") is True:
        raise MissingFileError(f"an export into {str(folder)!r} was interrupted; export the program again.")
    if fields.get("version") != _VERSION or not isinstance(fields.get("files"), dict):
        raise MissingFileError(f"{str(folder / MANIFEST)!r} is not a manifest of version {_VERSION}; {_AGAIN}.")
    for name, entry in fields["files"].items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise MissingFileError(f"{MANIFEST} lists {name!r}, which is not in {str(folder)!r}; {_AGAIN}.")
        if tensors and inside.parts[:1] == ("tensors",) and not inside.name.startswith("expected"):
            _check_tensor(folder / name, entry)


def _check_tensor(path: Path, entry: object) -> None:
    if path.is_symlink() or not path.is_file():
        raise MissingFileError(f"{str(path)!r}, which {MANIFEST} lists, is missing; {_AGAIN}.")
    if [path.stat().st_size, _checksum(path)] != entry:
        raise MissingFileError(f"{path} cannot be read: it is not the file that {MANIFEST} lists; {_AGAIN}.")


_AGAIN = f"export the program again, or, after a change by hand, remove {MANIFEST}"
