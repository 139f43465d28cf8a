"""The controls on the CPU, for real: the machine code's results, what it counts, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infercanary.contract import vocabulary as contract
from infercanary.probe import controls
from infercanary.probe.controls import Controls
from infercanary.probe.histogram import Tally
from infercanary.probe.targets.controls import available_controls, cpu, python_and_libc
from infercanary.probe.targets.controls.cpu import Calls, cpu_controls
from infercanary.probe.targets.controls.machine_code import (
    ARCHITECTURES,
    Code,
    MachineCode,
    Refused,
    assembled,
    mapped_code,
    memory_file,
)

CODE: Code = None
try:
    CODE = mapped_code()
    REFUSED = ""
except Refused as refused:
    REFUSED = str(refused)

NAMES = ("cpu_spin", "memory_copy", "page_io", "thread_wake")
PYTHON = f"{platform.python_implementation()} {platform.python_version()}"
needs_code = pytest.mark.skipif(CODE is None, reason=f"no machine code here: {REFUSED}")
KINDS = {"machine_code": CODE, "python": None} if CODE else {"python": None}
each_kind = pytest.mark.parametrize("made_of", KINDS.values(), ids=KINDS)
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture
def code() -> MachineCode:
    assert CODE is not None
    return CODE


def script(text: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.parametrize("name", NAMES)
@each_kind
def test_a_repeat_has_its_time_and_nothing_is_left_behind(name: str, made_of: Code) -> None:
    control = cpu_controls(made_of)[name]
    tracemalloc.start()
    try:
        with control() as seconds:
            assert all(0 < seconds() < 10 for _ in range(5))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20, "filling the buffers takes no second one"
    finally:
        tracemalloc.stop()
    before, maps = held(), Path("/proc/self/maps").read_text().count("\n")
    cycles = 20 if name == "memory_copy" else 200
    for _ in range(cycles):
        with control() as seconds:
            seconds()
    assert held() == before
    assert Path("/proc/self/maps").read_text().count("\n") < maps + cycles // 4


@needs_code
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_spin_computes_what_python_computes(code: MachineCode, times: int) -> None:
    starts, a, b = [float(i) for i in range(16)], (0.5, -0.75), (3.0, 7.1)
    given = (ctypes.c_double * 20)(*starts, *a, *b)
    out = (ctypes.c_double * 17)(*[-1.0] * 17)
    assert code.timed("spin", times, ctypes.addressof(given), ctypes.addressof(out))() > 0
    for chain, x in enumerate(starts):
        for _ in range(times):
            x = x * a[chain % 2] + b[chain % 2]
        assert out[chain] == x
    assert out[16] == -1.0


@needs_code
def test_the_control_spins_as_often_as_it_says(code: MachineCode, monkeypatch: pytest.MonkeyPatch) -> None:
    made, timed = [], code.timed
    monkeypatch.setattr(code, "timed", lambda *arguments: made.append(arguments) or timed(*arguments))  # type: ignore[func-returns-value]
    with cpu_controls(code)["cpu_spin"]() as seconds:
        seconds()
        [(_, times, _, out)] = made
        found = [*(ctypes.c_double * 16).from_address(out)]
    assert found == [start + 3.0 * times for start in range(16)]


@each_architecture
def test_spin_is_as_many_operations_as_are_counted(architecture: str) -> None:
    text = ARCHITECTURES[architecture].routines["spin"]
    assert 2 * len(re.findall(r"\b(?:mulpd|addpd|fmul|fadd) ", text)) == 32


@needs_code
@pytest.mark.parametrize("size", [64, 4096, 1 << 20])
def test_copy_copies_all_and_no_more(code: MachineCode, size: int) -> None:
    source = ctypes.create_string_buffer(os.urandom(size + 64))
    target = ctypes.create_string_buffer(b"\xee" * (size + 64))
    code.timed("copy", ctypes.addressof(target) + 32, ctypes.addressof(source), size)()
    assert target.raw[:-1] == b"\xee" * 32 + source.raw[:size] + b"\xee" * 32


@pytest.mark.parametrize("name", ["memory_copy", "page_io"])
@each_kind
def test_what_was_copied_arrived(name: str, made_of: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, memory = [], cpu._memory

    @contextmanager
    def recorded(size: int) -> Iterator[mmap.mmap]:
        with memory(size) as buffer:
            buffers.append(buffer)
            yield buffer

    monkeypatch.setattr(cpu, "_memory", recorded)
    with cpu_controls(made_of)[name]() as seconds:
        source, target = buffers
        target[:] = bytes(len(target))
        seconds()
        assert target[:] == source[:] and source[:3] == bytes((1, 2, 3))


@needs_code
def test_system_calls_are_made_in_turn_and_stop_at_what_is_not_wanted(code: MachineCode) -> None:
    (out, into), found = os.pipe(), ctypes.create_string_buffer(8)
    letters = ctypes.create_string_buffer(b"abcdefgh")
    here, there = ctypes.addressof(letters), ctypes.addressof(found)

    def calls(end: int, wanted: int) -> Calls:
        write = code.numbers.write, end, here, 8, 0, 8
        return Calls(code, 3, write, (code.numbers.read, out, there, 8, 0, wanted))

    try:
        calls(into, 8)()
        assert found.raw == b"abcdefgh"
        for end, wanted, gave, number in ((into, 7, 8, errno.EIO), (-1, 8, -9, errno.EBADF)):
            with pytest.raises(OSError, match=f"gave {gave}") as refused:
                calls(end, wanted)()
            assert refused.value.errno == number
    finally:
        os.close(out)
        os.close(into)


@needs_code
def test_signals_do_not_end_a_system_call() -> None:
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        with cpu_controls(CODE)["thread_wake"]() as seconds:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            deadline = time.monotonic() + 20
            while len(seen) < 50 and time.monotonic() < deadline:
                seconds()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 50


@needs_code
def test_waiting_for_the_gil_is_not_the_controls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for the other thread to be on a CPU, with the GIL.
    monkeypatch.setattr(cpu, "_SPINS", 8_000_000)
    interval, stop, waited = sys.getswitchinterval(), threading.Event(), []

    def keep_the_gil() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=keep_the_gil)
    with cpu_controls(CODE)["cpu_spin"]() as seconds:
        sys.setswitchinterval(0.05)
        busy.start()
        try:
            for _ in range(5):
                begin = time.perf_counter()
                took = seconds()
                waited.append(time.perf_counter() - begin - took)
        finally:
            stop.set()
            busy.join()
            sys.setswitchinterval(interval)
    assert statistics.median(waited) > 0.01


@each_architecture
def test_the_bytes_are_what_the_assembly_says(architecture: str, tmp_path: Path) -> None:
    """What AArch64's do was tried by hand in an emulator (unicorn), system calls and saved registers included."""
    prefix, is_here = f"{architecture}-linux-gnu-", platform.machine() == architecture
    assemblers = [*["as"] * is_here, f"llvm-mc -triple={architecture} -filetype=obj", f"{prefix}as"]
    copiers = [*["objcopy"] * is_here, "llvm-objcopy", f"{prefix}objcopy"]
    assembler, copier = (
        next((tool for tool in tools if shutil.which(tool.split()[0])), None)
        for tools in (assemblers, copiers)
    )
    if assembler is None or copier is None:
        pytest.skip(f"no assembler for {architecture}: apt-get install llvm")
    source, built, binary = (tmp_path / f"routine.{kind}" for kind in ("s", "o", "bin"))
    for name, lines in ARCHITECTURES[architecture].routines.items():
        text = "\n".join(line.partition("|")[2] for line in lines.splitlines()) + "\n"
        source.write_text(".intel_syntax noprefix\n" * (architecture == "x86_64") + text)
        subprocess.run([*assembler.split(), str(source), "-o", str(built)], check=True)
        command = [copier, "-O", "binary", "--only-section=.text", str(built), str(binary)]
        subprocess.run(command, check=True)
        assert binary.read_bytes() == assembled(lines), name


def test_the_controls_of_a_cpu() -> None:
    found, made_of = available_controls("cpu")
    assert tuple(found) == NAMES == tuple(name for name in contract.CONTROLS if not name.startswith("gpu_"))
    assert made_of == ("" if CODE else python_and_libc())


def test_a_gpu_that_hangs_leaves_the_cpus_controls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Was it the host? That is asked exactly then."""
    hang, tally = threading.Event(), Tally()
    measured = Controls(tally)
    measured.measure("cpu")  # to open them may take longer than the deadline below
    monkeypatch.setattr(controls, "_DEADLINE_SECONDS", 0.2)
    measure = measured._measure

    def hanging(device: str) -> dict[str, float]:
        return measure(device) if device == "cpu" or hang.wait(30) else {}

    monkeypatch.setattr(measured, "_measure", hanging)
    for _ in range(3):
        assert {*measured.measure("cuda")} == {*NAMES}
    [seconds] = tally.families()
    assert {point.labels[0] for point in seconds.points} == {"cpu"}
    assert caplog.text.count("control controls on cuda: DeadlineExceeded: no answer within 0.2 s") == 1
    hang.set()
    assert measured.close(10)


def test_one_slow_measurement_is_not_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost sets the interval: a freeze in that moment would silence the probe for minutes."""
    took, clock, measured = iter([3.0, 0.002, 0.002, 4.9, 0.002]), [0.0], Controls(Tally())
    monkeypatch.setattr(controls, "perf_counter", lambda: clock[0])

    def measure(device: str) -> dict[str, float]:
        clock[0] += next(took)
        return {}

    monkeypatch.setattr(measured, "_measure", measure)
    costs = []
    for _ in range(5):
        measured.measure("cpu")
        costs.append((round(measured.took, 6), round(measured.cost("cpu"), 6)))
    expected = [(0, 0), (0.002, 0.002), (0.002, 0.002), (4.9, 0.002), (0.002, 0.002)]
    assert costs == expected, "opening is warm-up"
    assert measured.close(5)


PRCTL = """
import ctypes, struct, sys
from infercanary.probe.targets.controls import available_controls
libc = ctypes.CDLL(None, use_errno=True)
"""
RUN_ALL = """
controls, made_of = available_controls("cpu")
for control in controls.values():
    with control() as seconds:
        assert seconds() > 0
assert not {"torch", "numpy"} & set(sys.modules), "nothing of the image"
print(made_of or "machine code", *controls, sep="|")
"""
SECCOMP = """
rules = [(0x20, 0, 0, 0), (0x15, 0, 3, %s), (0x20, 0, 0, 32), (0x45, 0, 1, 4),
         (0x06, 0, 0, 0x00050000 | 13), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(program)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
    sys.exit(print("no seccomp"))
"""


def test_where_the_kernel_maps_nothing_as_executable_python_does_it() -> None:
    """A seccomp filter, as a hardened container may have: mmap with PROT_EXEC fails."""
    mmap_number = {"x86_64": 9, "aarch64": 222}.get(platform.machine())
    if mmap_number is None:
        pytest.skip(f"no number of mmap is known for {platform.machine()}")
    found = script(PRCTL + SECCOMP % mmap_number + RUN_ALL)
    if found == "no seccomp":
        pytest.skip("this machine has no seccomp filters")
    assert found.startswith(PYTHON) and found.endswith("|".join(NAMES))


@needs_code
def test_where_nothing_writable_may_become_executable_machine_code_runs() -> None:
    found = script(PRCTL + "if libc.prctl(65, 1, 0, 0, 0): sys.exit(print('no MDWE'))\n" + RUN_ALL)
    if found == "no MDWE":
        pytest.skip("PR_SET_MDWE needs Linux 6.3")
    assert found == "|".join(("machine code", *NAMES))


@pytest.fixture
def unmapped() -> Iterator[None]:
    mapped_code.cache_clear()
    yield
    mapped_code.cache_clear()


@pytest.mark.usefixtures("unmapped")
def test_another_cpu_has_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with caplog.at_level("INFO"):
        _, made_of = available_controls("cpu")
    assert made_of.startswith(PYTHON) and "riscv64" in caplog.text and made_of in caplog.text


@pytest.mark.usefixtures("unmapped")
def test_without_files_in_memory_there_is_no_page_io(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EPERM, "memfd_create: Operation not permitted")

    monkeypatch.setattr("infercanary.probe.targets.controls.machine_code.memory_file", refuse)
    monkeypatch.setattr(cpu, "memory_file", refuse)
    with pytest.raises(Refused, match=r"may not run it .*memfd_create: Operation not permitted"):
        mapped_code()
    measured = Controls(Tally())
    for _ in range(3):
        assert {*measured.measure("cpu")} == {*NAMES} - {"page_io"}
    assert measured.made_of.startswith(PYTHON)
    assert caplog.text.count("control page_io on cpu: ") == 1
    assert measured.close(10)


@needs_code
def test_a_control_that_cannot_be_opened_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = held()
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "memory_file", lambda name: os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(OSError, match="gave -9"), cpu_controls(CODE)["page_io"]() as seconds:
            seconds()
    assert held() == before


FORKED = """
import os, threading, time, warnings
warnings.simplefilter("ignore")
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.machine_code import mapped_code
with cpu_controls(mapped_code() if %s else None)["thread_wake"]() as seconds:
    out, into = os.pipe()
    if not (child := os.fork()):
        os.close(into)
        os.read(out, 1)
        os._exit(0)
    seconds()
    begin = time.monotonic()
print(threading.active_count(), time.monotonic() - begin < 0.9)
os.close(into)
os.waitpid(child, 0)
"""


@each_kind
def test_its_thread_ends_also_where_a_child_holds_its_pipes(made_of: Code) -> None:
    assert script(FORKED % (made_of is not None)) == "1 True"


def test_a_file_in_memory_is_like_any_other() -> None:
    with os.fdopen(memory_file("test"), "r+b") as file:
        file.write(b"abc")
        file.flush()
        assert os.pread(file.fileno(), 8, 1) == b"bc" and not os.get_inheritable(file.fileno())
