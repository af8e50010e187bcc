"""Device names to GPUs: every real name finds its row, no similar name does, the trace's SM count wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.hardware import Gpu, find_gpu, list_gpus
from tracelens.hardware.table import load_rows

NAMES = {
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H800": "h800-sxm",
    "NVIDIA H20": "h20",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GH200 120GB": "gh200-96gb",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA A40": "a40",
    "NVIDIA L40": "l40",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB300": "gb300",
    "NVIDIA GeForce RTX 3060": "rtx-3060",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA GeForce RTX 3060 Laptop GPU": "rtx-3060-laptop",
    "NVIDIA GeForce RTX 3080 Laptop GPU": "rtx-3080-laptop",
    "NVIDIA GeForce RTX 4070 Laptop GPU": "rtx-4070-laptop",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "rtx-4090-laptop",
    "NVIDIA RTX A6000": "a6000",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PG509-200": "a100-pg509",
    "NVIDIA PG509-210": "a100-pg509",
    "NVIDIA A800-SXM4-80GB": "a800-sxm-80gb",
    "NVIDIA A800 80GB PCIe": "a800-pcie-80gb",
    "NVIDIA A30": "a30",
    "NVIDIA RTX A5000": "a5000",
    "NVIDIA RTX A4000": "a4000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA L20": "l20",
    "NVIDIA GeForce RTX 3080": "rtx-3080",
    "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti",
    "NVIDIA GeForce RTX 4070 Ti": "rtx-4070-ti",
    "NVIDIA GeForce RTX 4080": "rtx-4080",
    "NVIDIA GeForce RTX 5070 Ti": "rtx-5070-ti",
    "NVIDIA GeForce RTX 5080": "rtx-5080",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-32GB": "v100-sxm",
    "Tesla V100-SXM2-16GB": "v100-sxm",
    "Tesla V100-PCIE-32GB": "v100-pcie",
    "Tesla V100-DGXS-32GB": "v100-dgxs",
}

#: Real names of other parts: a prefix in common with a row must not be enough.
OTHERS = [
    "NVIDIA GeForce RTX 3060 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA GeForce RTX 5090 Laptop GPU", "NVIDIA H20-3e", "NVIDIA A10G-24Q", "NVIDIA RTX A6000-48Q",
    "Tesla V100-SXM3-32GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA H200 NVL", "NVIDIA H800 PCIe", "NVIDIA L40G", "NVIDIA RTX A4500", "Quadro GP100",
]  # fmt: skip


@pytest.mark.parametrize(("name", "key"), NAMES.items())
def test_a_real_device_name_finds_its_row(name: str, key: str) -> None:
    gpu = find_gpu(name)
    assert gpu.name == key
    assert gpu.matched_by == "device name"
    assert gpu.vendor == "nvidia"


#: What users type -> the part they mean.
TYPED = {
    "4090": "rtx-4090",
    "RTX 3090 Ti": "rtx-3090-ti",
    "4090 laptop": "rtx-4090-laptop",
    "rtx 6000 ada": "rtx-6000-ada",
    "RTX A6000": "a6000",
    "H100_SXM": "h100-sxm",
    "gh200": "gh200-96gb",
    "A800": "a800-sxm-80gb",
    "rtx pro 6000": "rtx-pro-6000-server",
}


@pytest.mark.parametrize(("typed", "key"), [*TYPED.items(), *NAMES.items()])
def test_a_gpu_is_named_as_people_write_it(typed: str, key: str) -> None:
    assert find_gpu(None, override=typed).name == key


@pytest.mark.parametrize("typed", ["", "rtx", "nvidia", "6000", "4090 d", "h100 80gb", "rtx 5090 laptop"])
def test_what_could_be_more_than_one_gpu_or_none_is_refused(typed: str) -> None:
    with pytest.raises(UsageError):
        find_gpu(None, override=typed)


@pytest.mark.parametrize("name", OTHERS)
def test_another_part_is_unknown_and_has_no_peaks(name: str) -> None:
    gpu = find_gpu(name, properties={"numSms": 42})
    assert (gpu.name, gpu.vendor, gpu.matched_by) == ("unknown", "nvidia", "none")
    assert not gpu.peak_tflops and not gpu.ceiling_tflops and gpu.bandwidth_gbps is None
    assert (gpu.sms, gpu.sms_source) == (42, "trace")


@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_row_matches(name: str) -> None:
    assert sum(row.matches(name) for row in load_rows()) == 1


def test_amd_degrades_politely() -> None:
    gpu = find_gpu(None, properties={"name": "AMD Instinct MI300X VF", "numSms": 304, "computeMajor": 9})
    assert (gpu.name, gpu.vendor, gpu.sms) == ("unknown", "amd", 304)
    assert gpu.info().peak_tflops == {}


def test_nothing_known() -> None:
    gpu = find_gpu(None)
    assert (gpu.name, gpu.vendor, gpu.sms, gpu.sms_source) == ("unknown", "unknown", None, "unknown")


def test_traced_sm_count_wins_and_is_said_so() -> None:
    assert find_gpu("NVIDIA H100 80GB HBM3").sms_source == "table"
    gpu = find_gpu("NVIDIA H100 80GB HBM3", properties={"numSms": 132})
    assert (gpu.sms, gpu.sms_source, gpu.peak("bf16")) == (132, "trace", 989.0)
    assert find_gpu("NVIDIA GB300", properties={"numSms": 152}).sms == 152
    assert find_gpu("NVIDIA GH200 480GB").sms == 132


def test_a_number_of_sms_that_no_chip_has_is_not_believed() -> None:
    """An A800's trace has the bytes of shared memory there, and the number under CUDA's own name."""
    read = {"numSms": 167936, "multiProcessorCount": 108, "computeMajor": 8, "computeMinor": 0}
    gpu = find_gpu("NVIDIA A800-SXM4-80GB", properties=read)
    assert (gpu.sms, gpu.sms_source, gpu.peak("bf16")) == (108, "trace", 312.0)
    assert find_gpu("NVIDIA A800-SXM4-80GB", properties={"numSms": 167936}).sms_source != "trace"


def test_a_slice_of_a_gpu_has_no_peaks() -> None:
    gpu = find_gpu("NVIDIA H100 80GB HBM3", properties={"numSms": 60})
    assert gpu.sms == 60
    assert not gpu.peak_tflops and gpu.bandwidth_gbps is None
    assert any("60 SMs" in note for note in gpu.notes)


def test_override_keeps_the_users_word() -> None:
    gpu = find_gpu("NVIDIA PG509-210", override="a100-sxm-80gb", properties={"numSms": 100})
    assert (gpu.name, gpu.matched_by, gpu.sms, gpu.peak("bf16")) == ("a100-sxm-80gb", "--gpu", 100, 312.0)
    assert any("100 SMs" in note for note in gpu.notes)
    assert find_gpu(None, override=" H100-SXM ").name == "h100-sxm"


@pytest.mark.parametrize(("wrong", "close"), [("h10", "h100-sxm"), ("h100-smx", "h100-sxm"), ("", "known:")])
def test_unknown_override_names_close_keys(wrong: str, close: str) -> None:
    with pytest.raises(UsageError, match=close) as caught:
        find_gpu("NVIDIA H100 80GB HBM3", override=wrong)
    assert caught.value.exit_code == 2


def test_memory_tells_boards_of_one_name_apart() -> None:
    twelve = find_gpu("NVIDIA GeForce RTX 3060", properties={"numSms": 28, "totalGlobalMem": 12487294976})
    eight = find_gpu("NVIDIA GeForce RTX 3060", properties={"numSms": 28, "totalGlobalMem": 8 * 2**30})
    assert twelve.bandwidth_gbps == 360.0
    assert eight.bandwidth_gbps is None and eight.peak("fp32") == 12.7
    assert eight.memory_gb == 8.0 and any("8 GB" in note for note in eight.notes)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("NVIDIA H100 80GB HBM3", 85028634624),
        ("NVIDIA A100-SXM4-40GB", 42481549312),
        ("NVIDIA H200", 143156 * 2**20),
        ("NVIDIA A10G", 22587 * 2**20),
        ("NVIDIA GB200", 197897617408),
        ("Tesla T4", 15843721216),
        ("Tesla V100-SXM2-32GB", 34084028416),
    ],
)
def test_memory_that_devices_report_is_that_of_the_table(name: str, reported: int) -> None:
    """What real devices of these names report: less than on the box, and never taken for another board."""
    gpu = find_gpu(name, properties={"totalGlobalMem": reported})
    assert gpu.memory_gb == reported / 2**30
    assert gpu.bandwidth_gbps == find_gpu(name).bandwidth_gbps is not None
    assert not any("the trace reports" in note for note in gpu.notes)


def test_clock_and_memory_are_the_traces_where_it_has_them() -> None:
    printed = find_gpu("NVIDIA H100 80GB HBM3")
    assert (printed.boost_mhz, printed.memory_gb) == (1980.0, 80.0)
    traced = find_gpu(
        "NVIDIA H100 80GB HBM3", properties={"clockRate": 1755000, "totalGlobalMem": 79 * 2**30}
    )
    assert (traced.boost_mhz, traced.memory_gb) == (1755.0, 79.0)
    assert (traced.info().memory_gib, printed.info().memory_gib) == (79.0, None)  # a box is no device
    assert find_gpu(None, properties={"clockRate": 1000000}).boost_mhz == 1000.0
    assert find_gpu("NVIDIA A10G").boost_mhz is None


def test_a_variant_keeps_no_figure_of_the_board_it_is_named_after() -> None:
    gpu = find_gpu("NVIDIA GeForce RTX 3090", properties={"numSms": 70, "totalGlobalMem": 20 * 2**30})
    assert (gpu.sms, gpu.sms_source, gpu.memory_gb) == (70, "trace", 20.0)
    assert not gpu.peak_tflops and gpu.bandwidth_gbps is None and gpu.boost_mhz is None and gpu.l2_mb is None
    assert set(gpu.cells) == {"sms"}  # what the whole board has, to compare with
    assert any("70 SMs" in note and "82" in note for note in gpu.notes)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "slice 3g.20gb of NVIDIA A100 SXM4 40GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "slice 1g.10gb of NVIDIA H100 SXM5 80GB"),
        ("Some GPU MIG 1c.2g.10gb", "slice 1c.2g.10gb of Some GPU"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "laptop"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "laptop"),
        ("NVIDIA RTX A4500", "not in the table"),
    ],
)
def test_an_unknown_gpu_says_why(name: str, said: str) -> None:
    gpu = find_gpu(name)
    assert len(gpu.notes) == 1 and said in gpu.notes[0] and "no peaks" in gpu.notes[0]


def test_missing_figures_are_told_with_their_reason() -> None:
    notes = find_gpu("NVIDIA L20").notes
    assert any(note.startswith("fp8 peak unknown: its tensor") for note in notes)


def test_the_2021_property_names() -> None:
    gpu = find_gpu(None, properties={"name": "Tesla V100-DGXS-32GB", "major": 7, "minor": 0})
    assert (gpu.name, gpu.compute_capability, gpu.sms, gpu.sms_source) == ("v100-dgxs", (7, 0), 80, "table")


def test_info_is_the_report_value() -> None:
    info = find_gpu("NVIDIA H200", properties={"numSms": 132}).info()
    assert (info.name, info.title, info.sms_source, info.bandwidth_gbps) == (
        "h200",
        "NVIDIA H200 SXM 141GB",
        "trace",
        4800.0,
    )
    assert info.peak_tflops["fp8"] == 1979.0 and info.ceiling_tflops["fp8"] == 1453.4


def test_a_gpu_is_hashable_and_equal_by_value() -> None:
    assert hash(find_gpu("NVIDIA H200")) == hash(find_gpu("NVIDIA H200"))
    assert find_gpu("NVIDIA H200") == find_gpu("NVIDIA H200")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


PROPERTIES = (
    "name", "numSms", "totalGlobalMem", "clockRate", "computeMajor", "computeMinor", "major", "minor",
)  # fmt: skip


@given(
    st.none() | st.text(),
    st.dictionaries(st.sampled_from(PROPERTIES), junk),
)
def test_hostile_properties_never_raise(name: str | None, properties: dict[str, object]) -> None:
    gpu = find_gpu(name, properties=properties)
    assert isinstance(gpu, Gpu)
    assert gpu.sms is None or gpu.sms > 0


def test_every_listed_gpu_can_be_overridden_to() -> None:
    assert [find_gpu(None, override=gpu.name).name for gpu in list_gpus()] == [g.name for g in list_gpus()]
