"""The real controls on the CPU: results of machine code, counted work, and released resources."""

import ctypes
import errno
import mmap
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
from fresh import printed

from infercanary.contract import vocabulary as contract
from infercanary.probe import controls
from infercanary.probe.controls import Controls
from infercanary.probe.histogram import Tally
from infercanary.probe.tags import values
from infercanary.probe.targets.controls import cpu, machine_code, python_and_libc
from infercanary.probe.targets.controls.cpu import Calls, cpu_controls
from infercanary.probe.targets.controls.machine_code import (
    ARCHITECTURES,
    MachineCode,
    Refused,
    assembled,
    mapped_code,
    memory_file,
)

try:
    CODE: MachineCode | None = mapped_code()
    REFUSED = ""
except Refused as refused:
    CODE, REFUSED = None, str(refused)

NAMES = ("cpu_spin", "memory_copy", "page_io", "thread_wake")
PYTHON = f"{platform.python_implementation()} {platform.python_version()}"
needs_code = pytest.mark.skipif(CODE is None, reason=f"no machine code here: {REFUSED}")
KINDS = [CODE, None] if CODE else [None]
each_kind = pytest.mark.parametrize("made_of", KINDS, ids=lambda code: "machine_code" if code else "python")
each = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def code():
    assert CODE is not None
    return CODE


@each
@each_kind
def test_a_repeat_has_its_time_and_nothing_is_left_behind(name, made_of):
    """Filling a control's buffers must not allocate a second buffer in Python."""
    control = cpu_controls(made_of)[name]

    def left():
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), maps

    tracemalloc.start()
    try:
        with control() as seconds:
            assert all(0 < seconds() < 10 for _ in range(5))
            _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20
    cycles, before = 20 if name == "memory_copy" else 200, left()
    for _ in range(cycles):
        with control() as seconds:
            seconds()
    after = left()
    assert after[:2] == before[:2]
    assert after[2] < before[2] + cycles // 4


@needs_code
@pytest.mark.parametrize("times", [1, 2, 3, 1000])
def test_spin_computes_what_python_computes(code, times):
    a, b = (0.5, -0.75), (3.0, 7.1)
    given, out = (ctypes.c_double * 20)(*range(16), *a, *b), (ctypes.c_double * 17)(*[-1.0] * 17)
    assert code.timed("spin", times, ctypes.addressof(given), ctypes.addressof(out))() > 0
    expected = [float(chain) for chain in range(16)]
    for _ in range(times):
        expected = [x * a[chain % 2] + b[chain % 2] for chain, x in enumerate(expected)]
    assert [*out] == [*expected, -1.0]


@needs_code
def test_the_control_spins_as_often_as_it_says(code, monkeypatch):
    made, timed = [], code.timed
    monkeypatch.setattr(code, "timed", lambda *arguments: made.append(arguments) or timed(*arguments))  # type: ignore[func-returns-value]
    with cpu_controls(code)["cpu_spin"]() as seconds:
        seconds()
        [(_, times, _, out)] = made
        found = [*(ctypes.c_double * 16).from_address(out)]
    assert found == [start + 3.0 * times for start in range(16)]


@needs_code
@pytest.mark.parametrize("size", [64, 128, 4096, 1 << 20])
def test_copy_copies_all_and_no_more(code, size):
    source = ctypes.create_string_buffer(os.urandom(size + 64))
    target = ctypes.create_string_buffer(b"\xee" * (size + 64))
    code.timed("copy", ctypes.addressof(target) + 32, ctypes.addressof(source), size)()
    assert target.raw[:-1] == b"\xee" * 32 + source.raw[:size] + b"\xee" * 32


@pytest.mark.parametrize("name", ["memory_copy", "page_io"])
@each_kind
def test_copied_bytes_arrive(name, made_of, monkeypatch):
    buffers, memory = list[mmap.mmap](), cpu._memory

    @contextmanager
    def recorded(size):
        with memory(size) as buffer:
            buffers.append(buffer)
            yield buffer

    monkeypatch.setattr(cpu, "_memory", recorded)
    with cpu_controls(made_of)[name]() as seconds:
        source, target = buffers
        target[:] = bytes(len(target))
        seconds()
        assert target[:] == source[:]
        assert source[:3] == bytes((1, 2, 3))


@needs_code
def test_system_calls_are_made_in_turn_and_stop_at_what_is_not_wanted(code):
    out, into = os.pipe()
    letters, found = ctypes.create_string_buffer(b"abcdefgh"), ctypes.create_string_buffer(8)

    def calls(file=into, wanted=8):
        write = (code.numbers.write, file, ctypes.addressof(letters), 8, 0, 8)
        Calls(code, 3, write, (code.numbers.read, out, ctypes.addressof(found), 8, 0, wanted))()

    try:
        calls()
        assert found.raw == b"abcdefgh"
        for file, wanted, words in ((into, 7, "gave 8"), (-1, 8, f"gave -{errno.EBADF}")):
            with pytest.raises(OSError, match=words):
                calls(file, wanted)
    finally:
        os.close(out)
        os.close(into)


@needs_code
def test_signals_do_not_end_a_system_call():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        with cpu_controls(CODE)["thread_wake"]() as seconds:
            deadline = time.monotonic() + 20
            while len(seen) < 50:
                seconds()
                assert time.monotonic() < deadline
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_bytes_are_what_the_assembly_says(architecture, tmp_path):
    """The AArch64 code was tested by hand in an emulator (unicorn), including system calls and saved registers."""
    is_own, prefix = platform.machine() == architecture, f"{architecture}-linux-gnu-"
    source, built, binary = (str(tmp_path / f"routine.{kind}") for kind in ("s", "o", "bin"))
    llvm = f"llvm-mc -triple={architecture} -filetype=obj"
    assembler = installed(*["as"] * is_own, llvm, f"{prefix}as")
    objcopy = installed(*["objcopy"] * is_own, "llvm-objcopy", f"{prefix}objcopy")
    syntax = ".intel_syntax noprefix\n" if architecture == "x86_64" else ""
    for name, lines in ARCHITECTURES[architecture].routines.items():
        Path(source).write_text(
            syntax + "".join(f"{line.partition('|')[2]}\n" for line in lines.splitlines())
        )
        subprocess.run([*assembler, source, "-o", built], check=True)
        subprocess.run([*objcopy, "-O", "binary", "--only-section=.text", built, binary], check=True)
        assert Path(binary).read_bytes() == assembled(lines), name


def installed(*commands):
    for command in commands:
        if shutil.which(command.split()[0]):
            return command.split()
    pytest.skip(f"no assembler: apt-get install llvm, for {commands[-1]}")


def test_a_gpu_that_hangs_leaves_the_cpus_controls(monkeypatch, caplog):
    """The CPU's controls must stay, because they tell whether the host caused the hang."""
    hang, tally = threading.Event(), Tally()
    measured = Controls(tally)
    measured.measure("cpu")  # opening may take longer than the short deadline below
    monkeypatch.setattr(controls, "_DEADLINE_SECONDS", 0.2)
    measure = measured._measure
    monkeypatch.setattr(
        measured, "_measure", lambda device: measure("cpu") if device == "cpu" else hang.wait(30)
    )
    for _ in range(3):
        assert {*measured.measure("cuda")} == {*NAMES}
    assert {labels[0] for labels in values(tally.families())[controls.SECONDS.name]} == {"cpu"}
    assert caplog.text.count("controls on cuda: DeadlineExceeded: no answer within 0.2 s") == 1
    hang.set()
    assert measured.close(10)


def test_one_slow_measurement_is_not_what_they_cost(monkeypatch):
    """The cost of controls affects the interval, so a single freeze must not silence the probe for minutes."""
    now, takes, measured = 0.0, 0.0, Controls(Tally())

    def measure(device):
        nonlocal now
        now += takes
        return {}

    monkeypatch.setattr(controls, "perf_counter", lambda: now)
    monkeypatch.setattr(measured, "_measure", measure)
    found = []
    for takes in (3.0, 0.002, 0.002, 4.9, 0.002):  # noqa: B007 - the first warms up
        measured.measure("cpu")
        found += [measured.took, measured.cost("cpu")]
    assert found == pytest.approx([0, 0, 0.002, 0.002, 0.002, 0.002, 4.9, 0.002, 0.002, 0.002])
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
print(made_of or "machine code", *controls, sep="|")
"""


def test_they_are_those_of_the_contract_and_import_nothing_of_the_image():
    found = printed(f"{PRCTL}{RUN_ALL}print({{'torch', 'numpy'}} & {{*sys.modules}})")
    made_of = "machine code" if CODE else python_and_libc()
    assert found.splitlines() == ["|".join((made_of, *NAMES)), "set()"]
    assert tuple(name for name in contract.CONTROLS if not name.startswith("gpu_")) == NAMES


def test_python_controls_if_the_kernel_refuses_executable_memory():
    """A seccomp filter, as in a hardened container, refuses mmap with PROT_EXEC."""
    mmap_number = {"x86_64": 9, "aarch64": 222}.get(platform.machine())
    if mmap_number is None:
        pytest.skip(f"the number of mmap is unknown for {platform.machine()}")
    found = printed(
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
    assert found.startswith(PYTHON)
    assert found.endswith("|".join(NAMES))


@needs_code
def test_where_nothing_writable_may_become_executable_machine_code_runs():
    found = printed(PRCTL + "if libc.prctl(65, 1, 0, 0, 0): sys.exit(print('no MDWE'))\n" + RUN_ALL)
    if found == "no MDWE":
        pytest.skip("PR_SET_MDWE needs Linux 6.3")
    assert found == "|".join(("machine code", *NAMES))


def test_without_files_in_memory_there_is_no_page_io(monkeypatch, caplog):
    def refuse(name):
        raise OSError(errno.EPERM, "memfd_create: Operation not permitted")

    mapped_code.cache_clear()
    for module in (machine_code, cpu):
        monkeypatch.setattr(module, "memory_file", refuse)
    with pytest.raises(Refused, match=r"may not run machine code .*memfd_create: Operation not permitted"):
        mapped_code()
    measured = Controls(Tally())
    for _ in range(3):
        assert {*measured.measure("cpu")} == {*NAMES} - {"page_io"}
    assert measured.made_of.startswith(PYTHON)
    assert caplog.text.count("control page_io on cpu: ") == 1
    assert measured.close(10)
    mapped_code.cache_clear()


@needs_code
def test_a_control_that_cannot_be_opened_holds_nothing(monkeypatch):
    files = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "memory_file", lambda name: os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(OSError, match="gave -9"), cpu_controls(CODE)["page_io"]() as seconds:
            seconds()
    assert len(os.listdir("/proc/self/fd")) == files


@each_kind
def test_its_thread_ends_also_where_a_child_holds_its_pipes(made_of):
    assert (
        printed(f"""
import os, threading, time, warnings
warnings.simplefilter("ignore")
from infercanary.probe.targets.controls.cpu import cpu_controls
from infercanary.probe.targets.controls.machine_code import mapped_code
with cpu_controls(mapped_code() if {made_of is not None} else None)["thread_wake"]() as seconds:
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
""")
        == "1 True"
    )


def test_a_file_in_memory_is_like_any_other():
    descriptor = memory_file("test")
    try:
        assert os.write(descriptor, b"abc") == 3
        assert os.pread(descriptor, 8, 1) == b"bc"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
