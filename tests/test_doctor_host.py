"""What is wrong with memory, kernel, GPU, watchdogs and the engine's log is found on its node."""

from dataclasses import replace

import pytest

import bundles
from bundles import GIB, MEMINFO, bundle, healthy, site
from dsv41.doctor import Report, judge
from dsv41.finding import Finding
from engine_logs import Asked, sglang, sglang_worker

TRIANGLE = site("triangle")
Texts = dict[str, dict[str, str]]


def look(texts: Texts, place: bundles.Site = TRIANGLE) -> Report:
    return judge(bundle(texts), place.fleet, place.expect)


def with_probe(probe: str, text: str, node: str = "spark2") -> Texts:
    texts = healthy(TRIANGLE)
    texts[node][probe] = text
    return texts


def on(report: Report, code: str, rank: int = 1) -> Finding:
    """The worst finding of a code on a node."""
    return next(f for f in report.findings if f.code == code and f.rank == rank)


def level(report: Report, code: str, rank: int = 1) -> str:
    return on(report, code, rank).level


def kib(text: str, **values: int) -> str:
    """A meminfo with other numbers, in KiB."""
    rows = dict(line.split(":", 1) for line in text.splitlines())
    rows |= {name: f" {value} kB" for name, value in values.items()}
    return "".join(f"{name}:{value}\n" for name, value in rows.items())


@pytest.mark.parametrize(
    ("total", "free", "expected"),
    [
        (0, 1_048_576, "fail"),  # CmaTotal zero, CmaFree of about 1 GB
        (65_536, 9_814_016, "fail"),  # the whole scratch
        (131_072, 131_073, "fail"),
        (131_072, 131_072, "ok"),
        (0, 0, "ok"),
    ],
)
def test_kexec_handover(total: int, free: int, expected: str) -> None:
    report = look(with_probe("meminfo", kib(MEMINFO, CmaTotal=total, CmaFree=free)))
    assert level(report, "D210") == expected
    if expected == "fail":
        assert "kho=off" in on(report, "D210").fix
        assert "D210" in {finding.code for finding in report.blocking()}


@pytest.mark.parametrize(
    ("uname", "cmdline", "expected"),
    [
        ("Linux 7.0.0-1019-nvidia aarch64", "ro quiet", "info"),
        ("Linux 7.0.0-1019-nvidia aarch64", "ro kho=off quiet", "ok"),
        ("Linux 6.17.0-1032-nvidia aarch64", "ro quiet", "ok"),
        ("Linux 10.1.0 aarch64", "ro", "info"),
    ],
)
def test_kho_on_the_command_line(uname: str, cmdline: str, expected: str) -> None:
    texts = healthy(TRIANGLE)
    for node in texts.values():
        node["uname"], node["cmdline"] = uname, cmdline
    report = look(texts)
    assert level(report, "D217") == expected
    assert report.status == "info"


def test_page_cache_before_a_start() -> None:
    report = look(with_probe("meminfo", kib(MEMINFO, MemFree=90_000_000)))
    assert level(report, "D211") == "warn"
    assert "drop_caches" in on(report, "D211").fix
    bare = replace(TRIANGLE, expect=replace(TRIANGLE.expect, engine_bytes=None))
    assert (
        level(look(with_probe("meminfo", kib(MEMINFO, MemFree=90_000_000)), bare), "D211") == "warn"
    )
    assert (
        level(look(with_probe("meminfo", kib(MEMINFO, MemFree=95_000_000)), bare), "D211") == "ok"
    )


def test_too_little_memory() -> None:
    texts = with_probe("meminfo", kib(MEMINFO, MemAvailable=112_000_000, MemFree=110_000_000))
    report = look(texts)
    assert level(report, "D212") == "fail"
    assert "106.8 GiB of 121.7 GiB are available, 111.0 GiB" in on(report, "D212").says
    bare = replace(TRIANGLE, expect=replace(TRIANGLE.expect, engine_bytes=None))
    assert level(look(texts, bare), "D212") == "ok"  # the cycle's 100 GiB


@pytest.mark.parametrize(
    ("room", "expected"), [(6 * GIB, "warn"), (10 * GIB, "info"), (None, "info")]
)
def test_swap_off(room: int | None, expected: str) -> None:
    place = replace(TRIANGLE, expect=replace(TRIANGLE.expect, headroom_bytes=room))
    header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    assert level(look(with_probe("swaps", header), place), "D213") == expected


def test_a_smaller_node_limits_the_plan() -> None:
    report = look(with_probe("meminfo", kib(MEMINFO, MemTotal=124_780_544)))
    says = next(f.says for f in report.findings if f.code == "D216" and f.rank is None)
    assert says == "spark2 has 119.0 GiB, others 121.7 GiB: it limits the plan."
    assert on(report, "D216").level == "warn"
    assert on(report, "D216").fix == "memory_gib = 119.00 for spark2 in the fleet file"


@pytest.mark.parametrize(
    ("line", "room", "expected"),
    [
        ("earlyoom\tactive\t/usr/bin/earlyoom -r 3600 -m 10", 6, "fail"),
        ("earlyoom\tactive\t/usr/bin/earlyoom -r 3600", 6, "fail"),  # 10 % by default
        ("earlyoom\tactive\t/usr/bin/earlyoom -m 4,2 --avoid x", 6, "info"),
        ("earlyoom\tactive\t/usr/bin/earlyoom -M 2097152,1048576", 6, "info"),
        ("earlyoom\tactive\t/usr/bin/earlyoom -M 8388608", 6, "fail"),
        ("earlyoom active: 2 GiB", 1, "fail"),  # the floor of P07 against a lean profile
        ("earlyoom active: 2 GiB", None, "warn"),
        (
            "earlyoom[812]: sending SIGTERM when mem avail <= 10.00% and swap free <= 10.00%",
            6,
            "fail",
        ),
        ("earlyoom\tinactive\t", 6, "ok"),
        ("nohang\tactive\t/usr/bin/nohang -m 20", 6, "fail"),
        ("dgx-anti-oom\tactive\t/opt/x", 6, "warn"),
        ("systemd-oomd\tactive\t/usr/lib/systemd/systemd-oomd", 6, "info"),
    ],
)
def test_memory_watchdogs(line: str, room: int | None, expected: str) -> None:
    expect = replace(TRIANGLE.expect, headroom_bytes=room and room * GIB)
    report = look(with_probe("services", line + "\n"), replace(TRIANGLE, expect=expect))
    assert level(report, "D215") == expected
    if expected == "fail":
        assert "GiB" in on(report, "D215").says
        assert "EARLYOOM_ARGS" in on(report, "D215").fix


NVRM = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359\n"
)
AER = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0\n"
KILL = "Out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB, anon-rss:94371840kB\n"
OOPS = "Internal error: Oops: 0000000096000004 [#1] SMP\n"


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        ("D225", AER, "fail"),
        ("D225", "mlx5_core 0000:01:00.0: mlx5_pci_slot_reset Device state = 1\n", "fail"),
        ("D225", "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [irq/60-aerdrv:612]\n", "fail"),
        ("D214", KILL, "warn"),
        ("D226", OOPS, "fail"),
        ("D226", " nvme_setup_rw+0x1c/0x2f0 [nvme_core]\n", "fail"),
        ("D226", "mt7925e 0009:01:00.0: Message 00020002 (seq 2) timeout\n", "warn"),
        ("D226", "INFO: task NetworkManager:1402 blocked for more than 122 seconds.\n", "warn"),
        ("D224", NVRM * 55, "info"),
    ],
)
def test_the_kernel_log(code: str, line: str, expected: str) -> None:
    report = look(with_probe("kernel-log", bundles.KERNEL_LOG + line))
    assert level(report, code) == expected
    others = {"D214", "D224", "D225", "D226"} - {code}
    assert {level(report, other) for other in others} == {"ok"}


def test_driver_noise_alone_never_fails() -> None:
    report = look(with_probe("kernel-log", bundles.KERNEL_LOG + NVRM * 55))
    assert report.status == "info"
    assert on(report, "D224").says.startswith("55 ")


def test_after_pcie_errors_the_service_is_not_to_be_restarted() -> None:
    report = look(with_probe("kernel-log", AER))
    assert "do not start the service again" in on(report, "D225").says
    assert "power adapter" in on(report, "D225").fix
    assert "D225" in {finding.code for finding in report.blocking()}


def test_the_boot_before_is_history() -> None:
    for text, words in (
        (AER + bundles.JOURNAL, "in the boot before"),
        (OOPS + bundles.JOURNAL, "in the boot before"),
        ("-- journal\nkernel: " + NVRM, "without a shutdown"),
    ):
        report = look(with_probe("kernel-log-previous", text))
        assert level(report, "D227") == "info"
        assert any(words in f.says for f in report.of(1) if f.code == "D227")
        assert report.status == "info"


def test_kernels_and_machines() -> None:
    report = look(with_probe("uname", "Linux 7.0.0-1019-nvidia aarch64\n"))
    says = next(f.says for f in report.findings if f.code == "D228" and f.level == "warn")
    assert "spark1 6.17.0-1032-nvidia, spark2 7.0.0-1019-nvidia" in says
    assert level(look(with_probe("uname", "Linux 6.17.0 x86_64\n")), "D223") == "fail"
    assert level(look(with_probe("uname", "Linux\n")), "D223") == "unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA GB10, 0 %, 208 MHz, 4.50 W, [N/A], [N/A], 38\n", "ok"),
        ("NVIDIA GB10, 0 %, 208 MHz, 4.50 W, 1024 MiB, 124610 MiB, 38\n", "ok"),
        ("NVIDIA H200, 0 %, 345 MHz, 75.10 W, 1 MiB, 143771 MiB, 28\n", "warn"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "fail"),
        ("No devices were found\n", "unknown"),
    ],
)
def test_the_gpu(text: str, expected: str) -> None:
    assert level(look(with_probe("nvidia-smi", text)), "D220") == expected


def test_the_driver_that_does_not_answer_at_all() -> None:
    texts = healthy(TRIANGLE)
    del texts["spark2"]["nvidia-smi"]
    captured = bundle(texts)
    errors = {
        "nvidia-smi": "exit status 18: Failed to initialize NVML: Driver/library version mismatch"
    }
    captured.captures["spark2"].errors.update(errors)  # type: ignore[attr-defined]  # a dict here
    report = judge(captured, TRIANGLE.fleet, TRIANGLE.expect)
    assert level(report, "D220") == "fail"
    assert on(report, "D220").fix == "sudo reboot"
    assert level(report, "D221") == "unknown"


def test_the_low_power_state() -> None:
    row = "NVIDIA GB10, 96 %, 611 MHz, 17.80 W, [N/A], [N/A], 51\n"
    report = look(with_probe("nvidia-smi", row))
    assert level(report, "D221") == "warn"
    assert "611 MHz and 17.8 W" in on(report, "D221").says


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("4242, python3, 5600 MiB\n", "fail"),
        ("4242, 5600 MiB\n", "fail"),
        ("4242, ollama, [N/A]\n", "fail"),
        ("4242, sglang::scheduler_TP1, [N/A]\n", "fail"),  # nobody of ours has booted here
        ("900, /usr/lib/xorg/Xorg, 40 MiB\n", "info"),
        ("", "ok"),
    ],
)
def test_programs_on_the_gpu(rows: str, expected: str) -> None:
    report = look(with_probe("compute-apps", rows))
    assert level(report, "D222") == expected
    if expected == "fail":
        assert on(report, "D222").fix == "sudo kill 4242"


def test_our_own_engine_is_no_foreign_program() -> None:
    texts = with_probe("compute-apps", "4242, /usr/bin/python3, [N/A]\n7, ollama, 900 MiB\n")
    texts["spark2"]["engine-log"] = sglang_worker(1)
    found = [f for f in look(texts).findings if f.code == "D222" and f.rank == 1]
    assert [(f.level, f.says.split()[0]) for f in found] == [
        ("fail", "ollama"),
        ("ok", "/usr/bin/python3"),
    ]


def test_large_programs_and_cargo() -> None:
    rows = "1 14000 systemd\n77 5872025 jupyter-lab\n91 9000 cargo\n"
    report = look(with_probe("processes", rows))
    assert level(report, "D263") == "fail"
    assert "SGLANG_RUST_BUILD_MODE=never" in on(report, "D263").fix
    assert any("jupyter-lab 5.6 GiB" in f.says for f in report.of(1))


def test_versions_that_differ() -> None:
    report = look(with_probe("versions", "driver\t580.142\nbios\t0ACUM027\n"))
    says = next(f.says for f in report.findings if f.code == "D229" and f.level == "warn")
    assert "driver: spark1 580.173.02, spark2 580.142" in says


def test_the_engine_log_of_a_node_is_diagnosed() -> None:
    texts = healthy(TRIANGLE)
    texts["spark1"]["engine-log"] = sglang(Asked(slots=8), pool=206_635, slots=6)
    texts["spark2"]["engine-log"] = sglang_worker(1).split("Load weight end")[0]
    expect = replace(TRIANGLE.expect, slots=8, pool_tokens=750_000)
    report = look(texts, replace(TRIANGLE, expect=expect))
    assert level(report, "D302", rank=0) == "fail"
    assert level(report, "D264", rank=1) == "info"
    assert "stage weights" in on(report, "D264").says
    assert level(report, "D300", rank=1) == "info"
    assert report.exit_status == 1
    assert report.blocking() == ()  # a log is of the past
    assert on(look(with_probe("engine-log", sglang_worker(1) + AER)), "D333").level == "fail"
