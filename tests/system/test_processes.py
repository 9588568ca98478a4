"""Several processes over one mesh: each compares with NumPy, and none waits for a dead one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import jaxmesh as jm
from jaxmesh.runtime.distributed import launcher
from tests import ROOT
from tests.generators.oracles import only_with_every, some

HERE = Path(__file__).parent
SCRIPT = ROOT / "tests" / "generators" / "process_checks.py"
NAMES = re.findall(r"^@check\ndef (\w+)", SCRIPT.read_text(), re.M)


def around(folder: Path) -> dict[str, str]:
    """Without the suite's own devices; where the package is not installed, the child finds it as this process does."""
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**kept, "PYTHONPATH": path, "PYTHONWARNINGS": "error", "JAXMESH_TEST_FOLDER": str(folder)}


def run(count: int, folder: Path, *what: str, timeout: float = 240, grace: float = 45) -> list[jm.processes.Ended]:
    command = [str(SCRIPT), *what]
    return jm.run_processes(count, command, devices=8 // count, timeout=timeout, grace=grace, env=around(folder))


@pytest.mark.parametrize("count", [2, 4])
def test_every_process_has_what_numpy_says(count: int, tmp_path: Path) -> None:
    ended = run(count, tmp_path, "all")
    for e in ended:
        assert e.code == 0, e.output[-4000:]
        assert [n for n in NAMES if f"passed {n}\n" not in e.output] == []


ENDS = [("killed", 1), ("killed", 0), ("raises", 1), ("shape", 1), ("raises", 0)]


@pytest.mark.parametrize(("kind", "victim"), some(ENDS, 4))
def test_a_process_that_ends_ends_the_others(kind: str, victim: int, tmp_path: Path) -> None:
    ended = run(2, tmp_path, "end", kind, str(victim))
    for number, e in enumerate(ended):
        assert "ran\n" in e.output, e.output[-4000:]
        # An error of its own, and not the runner, which waits for longer than the processes may.
        assert e.code != 0
        assert not e.stopped, (number, e.output[-4000:])
    if kind == "raises":
        assert "a mistake of one process" in ended[victim].output
        assert f"process {victim} ends after this error" in ended[victim].output
    elif kind == "shape":
        # The first that hears of it may end the others before they do.
        told = "".join(e.output for e in ended)
        assert "ProcessMismatchError: the argument" in told, told[-4000:]
        assert "float32[8, 4]" in told
        assert "float32[16, 4]" in told
    elif kind == "killed":
        assert ended[victim].code == -9
        said = ended[1 - victim].output
        assert re.search("Connection (closed|reset) by peer|task died|unhealthy", said), said[-4000:]


PHASES = [("aggregating", 2), ("joined", 2), ("compiling", 2), ("compiled", 2), ("running", 2), ("compiled", 4)]


@only_with_every
@pytest.mark.parametrize(("phase", "count"), PHASES)
def test_a_process_is_killed_at_every_phase(phase: str, count: int, tmp_path: Path) -> None:
    ended = run(count, tmp_path, "end_at", phase, str(count - 1))
    assert ended[-1].code == -9
    for e in ended[:-1]:
        assert e.code != 0
        assert not e.stopped, e.output[-4000:]
        assert re.search("Connection (closed|reset) by peer|task died|unhealthy", e.output), e.output[-4000:]


def test_none_outlives_the_runner(tmp_path: Path) -> None:
    text = (
        "import os, time\nprint(os.getpid(), flush=True)\n"
        "time.sleep(0 if os.environ['JAXMESH_PROCESS'] == '0' else 600)\nos._exit(3)\n"
    )
    ended = jm.run_processes(2, ["-c", text], timeout=60, grace=2, env=around(tmp_path))
    assert [e.stopped for e in ended] == [False, True]
    assert [e.code for e in ended] == [3, -9]
    for e in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(int(e.output), 0)


def test_the_command_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport jax\nimport jaxmesh as jm\njm.initialize_processes()\n"
        "print(jm.make_mesh((2, 2)).devices.size, jax.process_index(), sys.argv[1:])\n"
    )
    command = [
        sys.executable,
        "-m",
        "jaxmesh",
        "processes",
        "2",
        "--devices",
        "2",
        str(script),
        "--flag",
    ]
    done = subprocess.run(
        command, env=around(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for k in range(2):
        assert f"[{k}] 4 {k} ['--flag']\n" in done.stdout
    script.write_text("import sys\nsys.exit(7)\n")
    done = subprocess.run(command, env=around(tmp_path), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7


def test_emulate_comes_before_the_processes_meet(tmp_path: Path) -> None:
    text = (
        "import jax, jaxmesh as jm\njm.emulate(3)\njm.initialize_processes()\n"
        "assert jax.device_count() == 6 and len(jm.emulate(3)) == 3\n"
    )
    environment = around(tmp_path)
    ended = jm.run_processes(2, ["-c", text], timeout=120, env=environment)
    assert [e.code for e in ended] == [0, 0], ended


WRONG = [
    (lambda: jm.initialize_processes(num_processes=2, process_id=0), "coordinator_address"),
    (lambda: jm.initialize_processes("nowhere", 2, 0), "nowhere"),
    (lambda: jm.initialize_processes("h:1"), "JAXMESH_PROCESSES"),
    (lambda: jm.initialize_processes("h:1", 0, 0), "at least 1, got 0"),
    (lambda: jm.initialize_processes("h:1", 2, 2), "from 0 to 1, got 2"),
    (lambda: jm.initialize_processes("h:1", 2, 1, death_timeout=3), "at least 10, got 3"),
    (lambda: jm.initialize_processes("1234", 2, 0), "'1234'"),
    (lambda: jm.initialize_processes(":1234", 2, 0), "':1234'"),
    (lambda: jm.initialize_processes("h:\u00b2", 2, 0), "1 to 65535"),
    (lambda: jm.initialize_processes("h:99999", 2, 0), "1 to 65535, got 'h:99999'"),
    (lambda: jm.initialize_processes("h:1", 2, 0, local_devices="x"), "local_devices.*'x'"),
    (lambda: jm.run_processes(0, ["x.py"]), "count"),
    (lambda: jm.run_processes(1, 3), "command, got 3"),
    (lambda: jm.run_processes(1, ["x.py"], timeout="x"), "timeout.*'x'"),
    (lambda: jm.run_processes(1, ["x.py"], grace=float("nan")), "grace.*nan"),
    (lambda: jm.check_processes(1, 3), "what, got 3"),
    (lambda: jm.from_process_shards({"a": 1}, jm.make_mesh((1, 2))), "'a'"),
    (lambda: jm.from_process_shards({}, jm.make_mesh((1, 2)), varying=3), "varying, got 3"),
    (lambda: jm.run_processes(1, ["x.py"], devices=0), "devices"),
    (lambda: jm.run_processes(1, "x.py"), "'x.py'"),
    (lambda: jm.to_host([1, "a"]), "str"),
    (lambda: jm.from_process_shards([1], jm.make_mesh((1, 2))), r"\[1\]"),
]


@pytest.mark.parametrize(("call", "part"), WRONG)
def test_wrong_arguments_are_told(call: object, part: str) -> None:
    with pytest.raises(jm.ArgumentTypeError, match=part):
        call()


def test_numbers_and_paths_of_other_kinds(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('here')\n")
    ended = jm.run_processes(np.int64(1), [script], devices=np.int8(1), timeout=np.float32(60), env=around(tmp_path))
    assert [e.output for e in ended] == ["here\n"]
    assert jm.to_host(np.ones(2), process=np.int64(0)).sum() == 2


def test_the_script_of_the_notebook(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "notebooks" / "08_several_processes.ipynb").read_text())["cells"]
    (source,) = [text for c in cells if 'folder / "rows.py"' in (text := "".join(c["source"]))]
    script = tmp_path / "rows.py"
    script.write_text(source.split("'''")[1])
    for number, e in enumerate(jm.run_processes(2, [script], devices=4, timeout=120, env=around(tmp_path))):
        assert e.code == 0, e.output
        assert f"process {number} {[[4.0, 4.0]] * 4}" in e.output


def test_who_ends_the_runner_ends_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-u", "-m", "jaxmesh", "processes", "2", str(script)]
    with subprocess.Popen(command, env=around(tmp_path), stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        numbers = [int(runner.stdout.readline().split()[1]) for _ in range(2)]
        runner.terminate()
        assert runner.wait(60) == 128 + signal.SIGTERM
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_killed_runner_leaves_no_process(tmp_path: Path) -> None:
    """Also none that has not joined the others yet, and none that these have started."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, time\nother = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), other.pid, flush=True)\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-u", "-m", "jaxmesh", "processes", "2", str(script)]
    with subprocess.Popen(command, env=around(tmp_path), stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        numbers = [int(n) for _ in range(2) for n in runner.stdout.readline().split()[1:]]
        runner.kill()
    end = time.monotonic() + 30
    while (alive := [n for n in numbers if is_running(n)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(numbers) == 4
    assert alive == []


def is_running(number: int) -> bool:
    """Returns False also for an ended process that its new parent has not asked about."""
    try:
        return " Z " not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False


def test_a_process_that_dies_before_it_joins_is_named_at_once(tmp_path: Path) -> None:
    text = (
        "import os, time\nif os.environ['JAXMESH_PROCESS'] == '1': os.kill(os.getpid(), 11)\n"
        "import jaxmesh as jm\njm.initialize_processes()\n"
    )
    said: list[tuple[int, str]] = []
    ended = jm.run_processes(
        2, ["-c", text], timeout=4, grace=60, env=around(tmp_path), say=lambda *line: said.append(line)
    )
    assert (1, "jaxmesh: process 1 ended with SIGSEGV; the others have 60 s to end.\n") in said
    assert [(e.code, e.stopped) for e in ended] == [(-signal.SIGKILL, True), (-signal.SIGSEGV, False)]


def test_lines_without_an_end_are_passed_on_in_pieces(tmp_path: Path) -> None:
    pieces: list[int] = []
    text = "import sys\nfor _ in range(64): sys.stdout.write('x' * 65536)\n"
    (ended,) = jm.run_processes(1, ["-c", text], env=around(tmp_path), say=lambda _, line: pieces.append(len(line)))
    assert ended.code == 0
    assert sum(pieces) == 64 << 16
    assert max(pieces) == 1 << 16


def test_who_ends_the_runner_while_it_starts_one_ends_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal is only noted; what has been started is known, and ended, when the runner looks."""
    monkeypatch.setattr(launcher, "interrupted", threading.Event())
    launcher.interrupted.set()
    ended = jm.run_processes(2, ["-c", "import time; time.sleep(600)"], timeout=60)
    assert [(e.code, e.stopped) for e in ended] == [(-signal.SIGKILL, True)] * 2


def test_nobody_at_the_address(tmp_path: Path) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        text = f"import jaxmesh as jm\njm.initialize_processes({address!r}, 2, 1, connect_timeout=1)\n"
        (ended,) = jm.run_processes(1, ["-c", text], timeout=60, env=around(tmp_path))
    assert ended.code == 1
    assert f"MeshError: no process answers at coordinator_address '{address}'" in ended.output, ended.output


def test_too_late_to_meet_others() -> None:
    with pytest.raises(jm.MeshError, match="started with 16 devices"):
        jm.initialize_processes("127.0.0.1:1", 2, 0)


LISTENERS = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import jaxmesh as jm
from jax.sharding import PartitionSpec as P

jm.initialize_processes()
mesh = jm.make_mesh((4,), ("x",))
add = jm.jit(lambda v: jm.shard_to_full(jax.lax.psum(jm.full_to_shard(v, P("x")).sum(), "x"), P()), mesh=mesh)
assert float(add(np.arange(8.0, dtype=np.float32))) == 28.0
rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
print("listens", *sorted({row[1].partition(":")[0] for row in rows if row[3] == "0A"}))
"""
ELSEWHERE = """
set -e
ip link set lo up; ip addr add 192.0.2.2/32 dev lo
hostname elsewhere; echo '127.0.0.1 localhost\n192.0.2.2 elsewhere' > "$1/hosts"; mount --bind "$1/hosts" /etc/hosts
exec "$2" -m jaxmesh processes 2 --devices 2 "$1/listeners.py"
"""


def can_unshare() -> bool:
    """Whether this user may create network namespaces."""
    command = ["unshare", "--net", "--uts", "--mount", "ip", "link", "set", "lo", "up"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="this user may not create network namespaces")
def test_processes_of_this_machine_listen_on_the_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "listeners.py").write_text(LISTENERS)
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-c", ELSEWHERE, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=around(tmp_path), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"listens (.*)", done.stdout)
    # In the kernel's order of bytes, 127.0.0.1.
    assert found == ["0100007F"] * 2
