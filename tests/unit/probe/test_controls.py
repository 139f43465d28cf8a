"""The controls on the CPU, for real: the machine code's results, what it counts, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import errno
import math
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infercanary.probe import controls
from infercanary.probe.controls import Controls
from infercanary.probe.histogram import Tally
from infercanary.probe.targets.controls import available_controls, cpu, working_seconds
from infercanary.probe.targets.controls.cpu import Calls, CpuControl, cpu_controls
from infercanary.probe.targets.controls.machine_code import (
    ARCHITECTURES,
    MachineCode,
    Refused,
    assembled,
    int64s,
    mapped_code,
    memory_file,
)
from infercanary.probe.timing import Timing

try:
    CODE: MachineCode | None = mapped_code()
    REFUSED = ""
except Refused as refused:
    CODE, REFUSED = None, str(refused)

NATIVE = cpu_controls(CODE) if CODE else {}
CONTROLS = {**NATIVE, **cpu_controls(None)}
needs_code = pytest.mark.skipif(CODE is None, reason=f"no machine code here: {REFUSED}")
each = pytest.mark.parametrize("name", CONTROLS)


@contextmanager
def opened(name: str) -> Iterator[CpuControl]:
    control = CONTROLS[name]
    control.open()
    try:
        yield control
    finally:
        control.close()


@pytest.fixture
def code() -> MachineCode:
    assert CODE is not None
    return CODE


def script(text: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@each
def test_a_repeat_has_its_time_and_always_the_same_values(name: str) -> None:
    with opened(name) as control:
        found = [control.clock.measure(control.run) for _ in range(5)]
        values = [list(control.values(result)) for _, result in found]
    assert values == [values[0]] * 5
    assert 0 < len(values[0]) <= 1024 and all(map(math.isfinite, values[0]))
    for timing, _ in found:
        assert list(timing.phases) == ["compute"]
        assert 0 < working_seconds(timing) == timing.phases["compute"] <= timing.wall < 10
    assert control.work >= (0, 0)
    assert (control.work.flops > 0) == (control.bottleneck == "compute")
    assert (control.work.bytes > 0) == (control.bottleneck in ("memory", "io"))


@each
def test_each_call_may_come_from_another_thread(name: str) -> None:
    control = CONTROLS[name]
    errors = []

    def call(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    for step in (control.open, lambda: control.clock.measure(control.run), control.close, control.close):
        thread = threading.Thread(target=call, args=(step,))
        thread.start()
        thread.join()
    assert errors == []


@each
def test_filling_the_buffers_takes_no_second_one(name: str) -> None:
    tracemalloc.start()
    try:
        with opened(name):
            _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


@each
def test_nothing_is_left_behind(name: str) -> None:
    control = CONTROLS[name]
    cycles = 20 if control.bottleneck == "memory" else 200
    control.open()
    control.close()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    maps = Path("/proc/self/maps").read_text().count("\n")
    for _ in range(cycles):
        control.open()
        control.clock.measure(control.run)
        control.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert Path("/proc/self/maps").read_text().count("\n") < maps + cycles // 4


@each
def test_what_is_not_open_does_not_run(name: str) -> None:
    """Its memory is gone: running would end the host's process."""
    with opened(name) as control:
        clock = control.clock
    for used in (clock, control.clock):
        with pytest.raises(RuntimeError, match="not open"):
            used.measure(control.run)


@each
def test_closing_takes_nothing_from_a_repeat_under_way(name: str) -> None:
    class ClosesMeanwhile:
        def __enter__(self) -> None:
            control.close()

        def __exit__(self, *_: object) -> None:
            pass

    with opened(name) as control:
        expected = list(control.values(control.clock.measure(control.run)[1]))
        assert list(control.run(lambda _: ClosesMeanwhile())) == expected


@needs_code
@pytest.mark.parametrize("times", [1, 2, 3, 1000])
def test_spin_computes_what_python_computes(code: MachineCode, times: int) -> None:
    starts = [float(i) for i in range(16)]
    a, b = (0.5, -0.75), (3.0, 7.1)
    given = (ctypes.c_double * 20)(*starts, *a, *b)
    out = (ctypes.c_double * 17)(*[-1.0] * 17)
    assert code.timed("spin", times, ctypes.addressof(given), ctypes.addressof(out))() is not None
    for chain, x in enumerate(starts):
        for _ in range(times):
            x = x * a[chain % 2] + b[chain % 2]
        assert out[chain] == x
    assert out[16] == -1.0


@needs_code
def test_the_control_spins_as_often_as_it_says() -> None:
    with opened("cpu_spin") as control:
        values = control.values(control.clock.measure(control.run)[1])
    times = control.work.flops / 32
    assert values == [start + 3.0 * times for start in range(16)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spin_is_as_many_operations_as_are_counted(architecture: str) -> None:
    text = ARCHITECTURES[architecture].routines["spin"]
    vector_operations = len(re.findall(r"\b(?:mulpd|addpd|fmul|fadd) ", text))
    assert 2 * vector_operations == 32


@needs_code
def test_more_work_takes_longer(code: MachineCode) -> None:
    given, out = (ctypes.c_double * 20)(), (ctypes.c_double * 16)()

    def least(times: int) -> float:
        call = code.timed("spin", times, ctypes.addressof(given), ctypes.addressof(out))
        return min([call.seconds for _ in range(20) if call() is not None])

    assert least(80_000) > 2 * least(20_000)


@needs_code
@pytest.mark.parametrize("size", [64, 128, 4096, 1 << 20])
def test_copy_copies_all_and_no_more(code: MachineCode, size: int) -> None:
    source = ctypes.create_string_buffer(os.urandom(size + 64))
    target = ctypes.create_string_buffer(b"\xee" * (size + 64))
    code.timed("copy", ctypes.addressof(target) + 32, ctypes.addressof(source), size)()
    assert target.raw[:-1] == b"\xee" * 32 + source.raw[:size] + b"\xee" * 32


@pytest.mark.parametrize("name", [n for n in CONTROLS if n.startswith(("memory", "page"))])
def test_what_was_copied_arrived(name: str) -> None:
    with opened(name) as control:
        values = control.values(control.clock.measure(control.run)[1])
    size = {"memory": 8 << 20, "page": 1 << 20}[name.partition("_")[0]]
    assert values == [i % 251 + 1 for i in range(0, size, size // 16)]


@needs_code
def test_system_calls_are_made_in_turn_and_stop_at_what_is_not_wanted(code: MachineCode) -> None:
    write, read = code.numbers.write, code.numbers.read
    out, into = os.pipe()
    try:
        letters, found = ctypes.create_string_buffer(b"abcdefgh"), ctypes.create_string_buffer(8)
        here, there = ctypes.addressof(letters), ctypes.addressof(found)
        Calls(code, 3, (write, into, here, 8, 0, 8), (read, out, there, 8, 0, 8))()
        assert found.raw == b"abcdefgh"
        with pytest.raises(OSError, match="gave 8") as short:
            Calls(code, 3, (write, into, here, 8, 0, 8), (read, out, there, 8, 0, 7))()
        assert short.value.errno == errno.EIO
        with pytest.raises(OSError, match="gave -9") as bad:
            Calls(code, 3, (write, -1, here, 8, 0, 8), (read, out, there, 8, 0, 8))()
        assert bad.value.errno == errno.EBADF
    finally:
        os.close(out)
        os.close(into)


@needs_code
def test_signals_do_not_end_a_system_call() -> None:
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        with opened("thread_wake") as control:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            deadline = time.monotonic() + 20
            while len(seen) < 50 and time.monotonic() < deadline:
                control.clock.measure(control.run)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 50


@needs_code
def test_waiting_for_the_gil_is_not_the_controls_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cpu, "_SPINS", 8_000_000
    )  # long enough for the other thread to be on a CPU, with the GIL
    interval = sys.getswitchinterval()
    stop = threading.Event()

    def keep_the_gil() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=keep_the_gil)
    with opened("cpu_spin") as control:
        sys.setswitchinterval(0.05)
        busy.start()
        try:
            waited = []
            for _ in range(5):
                begin = time.perf_counter()
                timing, _ = control.clock.measure(control.run)
                waited.append(time.perf_counter() - begin - timing.wall)
        finally:
            stop.set()
            busy.join()
            sys.setswitchinterval(interval)
    assert statistics.median(waited) > 0.01


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_bytes_are_what_the_assembly_says(architecture: str, tmp_path: Path) -> None:
    """What AArch64's do was tried by hand in an emulator (unicorn), system calls and saved registers included."""
    candidates: list[list[str]] = [["llvm-mc", f"-triple={architecture}", "-filetype=obj"]]
    candidates += [[tool] for tool in (f"{architecture}-linux-gnu-as", f"{architecture}-linux-gnu-gcc-as")]
    if platform.machine() == architecture:
        candidates.insert(0, ["as"])
    assembler = next((c for c in candidates if shutil.which(c[0])), None)
    objcopy = shutil.which("llvm-objcopy") or shutil.which(f"{architecture}-linux-gnu-objcopy")
    if platform.machine() == architecture:
        objcopy = shutil.which("objcopy") or objcopy
    if assembler is None or objcopy is None:
        pytest.skip(f"no assembler for {architecture}: apt-get install llvm")
    for name, lines in ARCHITECTURES[architecture].routines.items():
        text = "\n".join(line.partition("|")[2] for line in lines.splitlines()) + "\n"
        syntax = ".intel_syntax noprefix\n" if architecture == "x86_64" else ""
        source, built, binary = (tmp_path / f"{name}.{kind}" for kind in ("s", "o", "bin"))
        source.write_text(syntax + text)
        subprocess.run([*assembler, str(source), "-o", str(built)], check=True)
        command = [objcopy, "-O", "binary", "--only-section=.text", str(built), str(binary)]
        subprocess.run(command, check=True)
        assert binary.read_bytes() == assembled(lines), name


def test_the_controls_of_a_cpu() -> None:
    found = available_controls("cpu")
    suffix = "" if CODE else "_python"
    assert {name: control.bottleneck for name, control in found.items()} == {
        f"cpu_spin{suffix}": "compute",
        f"memory_copy{suffix}": "memory",
        f"page_io{suffix}": "io",
        f"thread_wake{suffix}": "scheduling",
    }
    for control in found.values():
        control.close()  # was never opened


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
        assert set(measured.measure("cuda")) == set(CONTROLS) & set(measured.measure("cpu"))
    [seconds] = tally.families()
    assert seconds.points and all(point.labels[0] == "cpu" for point in seconds.points)
    assert caplog.text.count("control controls on cuda: no answer within 0.2 s") == 1
    hang.set()
    assert measured.close(10)


def test_one_slow_measurement_is_not_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost sets the interval: a freeze in that moment would silence the probe for minutes."""
    took = iter([3.0, 0.002, 0.002, 4.9, 0.002])
    clock = [0.0]
    monkeypatch.setattr(controls, "perf_counter", lambda: clock[0])
    measured = Controls(Tally())

    def measure(device: str) -> dict[str, float]:
        clock[0] += next(took)
        return {}

    monkeypatch.setattr(measured, "_measure", measure)
    costs = []
    for _ in range(5):
        measured.measure("cpu")
        costs.append((round(measured.took, 6), round(measured.cost("cpu"), 6)))
    assert costs == [(0, 0), (0.002, 0.002), (0.002, 0.002), (4.9, 0.002), (0.002, 0.002)], (
        "opening is warm-up"
    )
    assert measured.close(5)


def test_they_import_nothing_of_the_image() -> None:
    assert script(
        "import sys\n"
        "from infercanary.probe.targets.controls import available_controls\n"
        "for control in available_controls('cpu').values():\n"
        "    control.open()\n"
        "    control.clock.measure(control.run)\n"
        "    control.close()\n"
        "print({'torch', 'numpy'} & set(sys.modules))\n"
    ) in ("set()",)


PRCTL = """
import ctypes, struct, sys
from infercanary.probe.targets.controls import available_controls
libc = ctypes.CDLL(None, use_errno=True)
"""
RUN_ALL = """
for name, control in available_controls("cpu").items():
    control.open()
    control.clock.measure(control.run)
    control.close()
    print(name, control.environment()["control_code"])
"""


def test_where_the_kernel_maps_nothing_as_executable_python_does_it() -> None:
    """A seccomp filter, as a hardened container may have: mmap with PROT_EXEC fails."""
    mmap_number = {"x86_64": 9, "aarch64": 222}.get(platform.machine())
    if mmap_number is None:
        pytest.skip(f"no number of mmap is known for {platform.machine()}")
    found = script(
        PRCTL
        + f"""
rules = [(0x20, 0, 0, 0), (0x15, 0, 3, {mmap_number}), (0x20, 0, 0, 32), (0x45, 0, 1, 4),
         (0x06, 0, 0, 0x00050000 | 13), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(program)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
    sys.exit(print("no seccomp"))
"""
        + RUN_ALL
    )
    if found == "no seccomp":
        pytest.skip("this machine has no seccomp filters")
    names = [line.split()[0] for line in found.splitlines()]
    assert sorted(names) == ["cpu_spin_python", "memory_copy_python", "page_io_python", "thread_wake_python"]
    assert platform.python_version() in found


@needs_code
def test_where_nothing_writable_may_become_executable_machine_code_runs() -> None:
    found = script(PRCTL + "if libc.prctl(65, 1, 0, 0, 0): sys.exit(print('no MDWE'))\n" + RUN_ALL)
    if found == "no MDWE":
        pytest.skip("PR_SET_MDWE needs Linux 6.3")
    assert "python" not in found
    assert found.count("machine code for") == 4


@pytest.fixture
def unmapped() -> Iterator[None]:
    mapped_code.cache_clear()
    yield
    mapped_code.cache_clear()


@pytest.mark.usefixtures("unmapped")
def test_another_cpu_has_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with caplog.at_level("INFO"):
        assert "cpu_spin_python" in available_controls("cpu")
    assert caplog.messages == [
        "controls: no machine code of their own: there is none for riscv64; Python's instead"
    ]


@pytest.mark.usefixtures("unmapped")
def test_without_files_in_memory_there_is_no_page_io(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EPERM, "memfd_create: Operation not permitted")

    monkeypatch.setattr("infercanary.probe.targets.controls.machine_code.memory_file", refuse)
    monkeypatch.setattr(cpu, "memory_file", refuse)
    with pytest.raises(Refused, match=r"may not run it .*memfd_create: Operation not permitted"):
        mapped_code()
    assert set(available_controls("cpu")) == {"cpu_spin_python", "memory_copy_python", "thread_wake_python"}


@needs_code
def test_a_control_that_cannot_be_opened_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "memory_file", lambda name: os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(OSError, match="gave -9"):
            NATIVE["page_io"].open()
    assert len(os.listdir("/proc/self/fd")) == files
    with opened("page_io") as control:
        control.clock.measure(control.run)


@pytest.mark.parametrize("name", [n for n in CONTROLS if n.startswith("thread_wake")])
def test_its_thread_ends_also_where_a_child_holds_its_pipes(name: str) -> None:
    assert (
        script(f"""
import os, threading, time, warnings
warnings.simplefilter("ignore")
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.machine_code import mapped_code
control = cpu_controls(mapped_code() if {name == "thread_wake"} else None)["{name}"]
control.open()
out, into = os.pipe()
if not (child := os.fork()):
    os.close(into)
    os.read(out, 1)
    os._exit(0)
control.clock.measure(control.run)
begin = time.monotonic()
control.close()
print(threading.active_count(), time.monotonic() - begin < 0.9)
os.close(into)
os.waitpid(child, 0)
""")
        == "1 True"
    )


def test_a_file_in_memory_is_like_any_other() -> None:
    descriptor = memory_file("test")
    try:
        assert os.write(descriptor, b"abc") == 3
        assert os.pread(descriptor, 8, 1) == b"bc"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_tables_hold_what_is_negative_or_large() -> None:
    assert list(int64s(-1, 1 << 62)) == [-1, 1 << 62]


def test_waiting_and_launching_are_not_working() -> None:
    timing = Timing(9.0, {"h2d": 1.0, "compute": 2.0, "d2h": 0.5, "launch": 4.0, "queue": 8.0})
    assert working_seconds(timing) == 3.5
