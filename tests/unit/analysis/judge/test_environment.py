"""The Python that has ttnn: found, missing, the wrong one, of another version, or one that dies."""

from __future__ import annotations

import ast
import os
import re
import sys
import venv
from pathlib import Path

import pytest

from jaxmesh.analysis.environments import Library, cache_folder
from jaxmesh.analysis.judge import environment, judge, judge_folder
from jaxmesh.analysis.judge.environment import TTNN, check_python, find_environment, make_environment
from jaxmesh.cli.main import main
from jaxmesh.dialects.ttnn.forms import STAND_INS
from jaxmesh.emit.export_folder import utils_text
from jaxmesh.errors import ArgumentValueError, FolderError, MissingFileError, TtnnError

VARIABLE = TTNN.variable
GET = r"make one with `jaxmesh ttnn-env`.*with JAXMESH_TTNN_PYTHON"


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(judge, "BOARDS", tmp_path / "no boards")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def python_with(folder: Path, ttnn: str, version: str = "0.1.0", stand_in: bool = True) -> Path:
    """A Python that has a ttnn of this text."""
    package = folder / "site" / "ttnn"
    compiler = package / "runtime" / "sfpi" / "compiler" / "bin"
    compiler.mkdir(parents=True)
    if stand_in:
        (compiler / "stand_in.elf").touch()
    (package / "__init__.py").write_text(ttnn)
    about = folder / "site" / f"ttnn-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ttnn\nVersion: {version}\n")
    text = f'#!/bin/sh\nPYTHONPATH="{folder / "site"}" exec "{sys.executable}" "$@"\n'
    return executable(folder / "bin" / "python", text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported folder, as far as these tests read it."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "main.py").write_text("import ttnn\nimport utils\ndef f():\n  pass\ndef main():\n  return f()\n")
    (made / "utils.py").write_text("class DeviceGetter:\n  _device = None\n  def close(): pass\n")
    return made


# --- found or not ----------------------------------------------------------------------------------------------------


def test_none_is_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TtnnError, match=rf"and '{tmp_path}/cache/jaxmesh/ttnn/bin/python' does not exist; {GET}"):
        judge_folder(folder)


def test_it_is_found_by_argument_by_variable_and_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = python_with(tmp_path / "cache" / "jaxmesh" / "ttnn", "", "1.0")
    named, given = python_with(tmp_path / "b", "", "2.0", stand_in=False), python_with(tmp_path / "c", "", "3.0")
    assert (find_environment().python, find_environment().version) == (made, "1.0")
    assert find_environment().stand_in
    monkeypatch.setenv(VARIABLE, str(named))
    assert (find_environment().version, find_environment().stand_in) == ("2.0", False)
    assert find_environment(given).version == "3.0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\necho hello\n", r"it does not run Python \(hello\)"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", r"it does not run Python \(broken\)"),
        ("#!/no/such/interpreter\n", "it cannot be started"),
    ],
)
def test_a_program_that_is_no_python(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(TtnnError, match=rf"the Python for ttnn is .* \(it was given\), but {why}.*; {GET}"):
        find_environment(executable(tmp_path / "python", text))


def test_a_python_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TtnnError, match=r"it cannot be started: .*No such file"):
        find_environment(tmp_path / "python")


def test_a_python_without_ttnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    version = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(
        TtnnError, match=rf"\({VARIABLE} names it\), but ttnn is not installed in this Python {version}, .*{GET}"
    ):
        find_environment()


# --- a ttnn that does not judge --------------------------------------------------------------------------------------


def test_a_ttnn_of_another_version_that_lacks_what_is_needed(folder: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "env", "graph = None", "0.5.1")
    with pytest.raises(
        TtnnError, match=r"ttnn 0.5.1 of .* cannot judge: ImportError: it does not have ttnn.get_memory_view; "
    ):
        judge_folder(folder, python=python)


def test_a_ttnn_that_cannot_be_imported(folder: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "env", "import no_such_module")
    with pytest.raises(TtnnError, match=r"cannot judge: ModuleNotFoundError: No module named 'no_such_module'"):
        judge_folder(folder, python=python)


def test_a_ttnn_that_ends_the_process(folder: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "env", "import os, sys\nprint('no', file=sys.stderr, flush=True)\nos.abort()")
    with pytest.raises(TtnnError, match=r"ended with signal SIGABRT before the program began: no; "):
        judge_folder(folder, python=python)


def test_a_ttnn_that_hangs(folder: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "env", "import time\ntime.sleep(60)")
    with pytest.raises(TtnnError, match=r"ran for 1.5 s on ttnn 0.1.0 and was at line 0 of main.py"):
        judge_folder(folder, python=python, timeout=1.5)


# --- mistakes of the caller ------------------------------------------------------------------------------------------


def test_a_stand_in_does_not_compile_for_a_board(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "0").touch()
    monkeypatch.setattr(judge, "BOARDS", tmp_path / "boards")
    with pytest.raises(TtnnError, match="has a stand-in for the compiler of kernels"):
        judge_folder(folder, python=python_with(tmp_path / "env", ""))


def test_a_machine_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(
        ArgumentValueError,
        match=r"the machines are n150, n300, t3000, galaxy, .* or blackhole-galaxy, got 'n600'",
    ):
        judge_folder(folder, cluster="n600")


def test_a_folder_without_a_program(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"does not contain main.py"):
        judge_folder(tmp_path)


def test_the_command_says_how_to_get_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(folder), "--on", "ttnn"]) == 2
    assert "make one with `jaxmesh ttnn-env`" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--ttnn-python", "x"], ["--cluster", "n300"]])
def test_options_of_the_library_need_the_library(
    option: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(folder), *option]) == 2
    assert f"{option[0]} is an option of runs on the real ttnn and needs --on ttnn" in capsys.readouterr().err


def test_a_file_is_exported_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "model.mlir"), "--on", "ttnn"]) == 2
    assert "jaxmesh translate FILE --to python" in capsys.readouterr().err


# --- making one ------------------------------------------------------------------------------------------------------


def test_a_fitting_python_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = "#!/bin/sh\necho {}\n"
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(TtnnError, match=r"published for Python 3.12 and 3.10 alone, and none is on the path"):
        TTNN.base_python()
    old = executable(tmp_path / "pyenv" / "versions" / "3.10.2" / "bin" / "python", fake.format("3.10"))
    assert TTNN.base_python() == old
    # A link of pyenv that starts nothing, as it is without a chosen version.
    executable(tmp_path / "path" / "python3.12", "#!/bin/sh\nexit 127\n")
    assert TTNN.base_python() == old
    new = executable(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin" / "python", fake.format("3.12"))
    newest = executable(tmp_path / "pyenv" / "versions" / "3.12.10" / "bin" / "python", fake.format("3.12"))
    assert TTNN.base_python() == newest
    assert TTNN.base_python(new) == new
    with pytest.raises(TtnnError, match="is another one"):
        TTNN.base_python(executable(tmp_path / "other", fake.format("3.13")))


BASE = """#!/bin/sh
case "$2" in
  venv) shift 2; exec "{python}" -m venv --without-pip "$@" ;;
esac
echo {minor}
"""
SITE = "lib/python{}.{}/site-packages".format(*sys.version_info[:2])


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python that makes environments whose pip installs an empty ttnn, or what the file `fail` says."""
    made = executable(tmp_path / "base", BASE.format(python=sys.executable, minor="3.12"))

    def run(library: Library, command: list[str], failure: str) -> None:
        if command[2] == "venv":
            return original(library, command, failure)
        if (tmp_path / "fail").exists():
            raise TtnnError(f"{failure}: {(tmp_path / 'fail').read_text()}")
        site, version = Path(command[0]).parents[1] / SITE, command[-1].partition("==")[2]
        (site / "ttnn").mkdir()
        (site / "ttnn" / "__init__.py").touch()
        (site / f"ttnn-{version}.dist-info").mkdir()
        about = f"Metadata-Version: 2.1\nName: ttnn\nVersion: {version}\n"
        (site / f"ttnn-{version}.dist-info" / "METADATA").write_text(about)
        return None

    original = Library._run
    monkeypatch.setattr(Library, "_run", run)
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_environment_is_made_aside_kept_and_exchanged(base: Path, tmp_path: Path) -> None:
    home = tmp_path / "rooms" / "env"
    assert make_environment(home, "9.9", base).stand_in
    assert names(home.parent) == ["env"]
    assert str(home) in (home / "bin" / "activate").read_text()
    assert all(b".new" not in p.read_bytes() for p in (home / "bin").iterdir() if not p.is_symlink())
    compiler = home / SITE / "ttnn" / "runtime" / "sfpi" / "compiler" / "bin"
    assert os.access(compiler / "riscv-tt-elf-g++", os.X_OK)
    # The same version is kept; also then a wrong Python is named.
    (home / "note").touch()
    assert make_environment(home, "9.9", base).version == "9.9"
    assert (home / "note").exists()
    with pytest.raises(TtnnError, match="is another one; give another with --python"):
        make_environment(home, "9.9", executable(tmp_path / "other", "#!/bin/sh\necho 3.13\n"))
    # A failure leaves it as it was; another version takes its place.
    (tmp_path / "fail").write_text("ERROR: no wheel")
    with pytest.raises(TtnnError, match=r"pip cannot install ttnn 9\.8: ERROR: no wheel"):
        make_environment(home, "9.8", base)
    assert names(home.parent) == ["env"]
    assert make_environment(home, "9.9", base).version == "9.9"
    (tmp_path / "fail").unlink()
    assert make_environment(home, "9.8", base).version == "9.8"
    assert not (home / "note").exists()
    assert names(home.parent) == ["env"]


def test_what_no_command_made_is_not_replaced(base: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    venv.create(own)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    for folder in (own, tmp_path / "file", tmp_path / "full"):
        with pytest.raises(TtnnError, match=r"has files, and `jaxmesh ttnn-env` did not make it"):
            make_environment(folder, "9.9", base)
    assert (own / "pyvenv.cfg").exists()
    with pytest.raises(TtnnError, match=r"no environment can be made in .*: .*File exists"):
        make_environment(tmp_path / "file" / "env", "9.9", base)
    (tmp_path / "empty").mkdir()
    assert make_environment(tmp_path / "empty", "9.9", base).version == "9.9"


def test_a_compiler_that_came_along_is_kept(base: Path, tmp_path: Path) -> None:
    home = make_environment(tmp_path / "env", "9.9", base).python.parents[1]
    compiler = home / SITE / "ttnn" / "runtime" / "sfpi" / "compiler" / "bin"
    (compiler / "stand_in.elf").unlink()
    (compiler / "riscv-tt-elf-g++").write_text("its own")
    environment._add_stand_in(home)
    assert (compiler / "riscv-tt-elf-g++").read_text() == "its own"
    assert not find_environment(home / "bin" / "python").stand_in


def test_the_command_tells_how_another_folder_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def make(folder: Path, version: str, python: str | None) -> environment.Environment:
        asked.append((folder, version, python))
        return environment.Environment(folder / "bin" / "python", version, True)

    monkeypatch.setattr(environment, "make_environment", make)
    assert main(["ttnn-env"]) == 0
    assert capsys.readouterr().out == f"ttnn 0.81.1 in {tmp_path}/cache/jaxmesh/ttnn\n"
    assert main(["ttnn-env", str(tmp_path / "x"), "--version", "0.77.0", "--python", "p"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"export {VARIABLE}={tmp_path}/x/bin/python"
    assert asked[1] == (tmp_path / "x", "0.77.0", "p")


def test_a_check_of_one_python_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(TtnnError, match=r"\(of a test\)"):
        check_python(tmp_path / "python", "of a test")


def test_an_exported_program_replaces_the_types_that_the_verdict_names() -> None:
    stated = re.search(r"^STAND_INS = (\{.*\})$", utils_text(), re.M)
    assert stated is not None
    assert ast.literal_eval(stated[1]) == {name.upper(): other for name, other in STAND_INS.items()}


# --- folders that other users can write to ---------------------------------------------------------------------------


def test_no_name_that_another_user_can_guess_is_used(base: Path, tmp_path: Path) -> None:
    """Whoever creates a folder of a known name first could put a program into the environment."""
    home = tmp_path / "shared" / "env"
    for name in (".env.new", ".env.old"):
        trap = home.parent / name / "bin"
        trap.mkdir(parents=True)
        executable(trap / "python", "#!/bin/sh\ntouch /dev/null\n")
    seen: list[tuple[int, str]] = []

    def note(made: Path) -> None:
        seen.append((made.parent.stat().st_mode & 0o777, made.parent.name))

    TTNN.install(home, "1.0", base, note)
    ((mode, name),) = seen
    assert mode == 0o700
    assert name not in (".env.new", "shared")
    assert sorted(p.name for p in home.parent.iterdir()) == [".env.new", ".env.old", "env"]


def test_folders_of_another_user_are_refused(monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path) -> None:
    home = tmp_path / "env"
    TTNN.install(home, "1.0", base)
    cache_folder().mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for act in (lambda: TTNN.install(home, "1.0", base), cache_folder, find_environment):
        with pytest.raises(FolderError, match=r"belongs to user .* and this process runs as user 54321"):
            act()


def test_a_cache_that_is_no_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "jaxmesh").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FolderError, match="not a folder, or a broken link"):
        cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "jaxmesh"
