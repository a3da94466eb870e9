"""A spec is card x host x engine: each figure from its own file, and each of them can say so."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.step.cards import FIGURE_NAMES, KINDS, load_sheet, load_spec, names, spec_names

GPUS = (
    "a10", "a100", "a100-40", "a10g", "a6000", "b200", "b300", "gb200", "gh200", "h100",
    "h100-pcie", "h20", "h200", "l4", "l40s", "mi300x", "rtx3060", "rtx3080ti", "rtx3090",
    "rtx4060", "rtx4070", "rtx4080", "rtx4090", "rtx5070ti", "rtx5080", "rtx5090", "rtx6000-ada",
    "rtxpro6000", "t4", "v100",
)  # fmt: skip
# An engine may do nothing there; a card may have no PDL.
MAY_BE_NONE = {"host_step_us", "ahead_us", "request_us", "pdl_saves_us"}

cards, hosts, engines = (st.sampled_from(names(kind)) for kind in ("card", "host", "engine"))


def test_the_devices_of_the_course_ship_with_it() -> None:
    assert {*GPUS, "laptop-cpu"} <= set(spec_names())


@given(cards, hosts, engines)
def test_any_engine_runs_on_any_host_and_card(card: str, host: str, engine: str) -> None:
    spec = load_spec(card, host, engine)
    assert (spec.name, spec.host, spec.engine) == (card, host, engine)
    for figure in FIGURE_NAMES:
        value = getattr(spec, figure)
        assert value > 0 or (value == 0 and figure in MAY_BE_NONE)
        kind, source = spec.source(figure).split(": ", 1)
        assert kind in KINDS
        assert source


def test_an_engines_work_is_counted_in_ops_of_the_host() -> None:
    """Twice as slow a host makes every figure of the CPU's own work twice as long."""
    op_us = load_sheet("host", "server")["op_us"]
    engine = load_sheet("engine", "vllm")
    spec = load_spec("h200", "server", "vllm")
    assert spec.cpu_op_us == engine["kernel_ops"] * op_us
    assert spec.live_op_us == engine["live_ops"] * op_us
    assert (spec.host_step_us, spec.ahead_us) == (0, engine["ahead_ops"] * op_us)
    assert spec.request_us == engine["request_ops"] * op_us
    assert load_spec("h200", "desktop-2025").cpu_op_us < spec.cpu_op_us


def test_what_kernels_reach_is_a_share_of_what_the_card_has() -> None:
    card, engine = load_sheet("card", "h200"), load_sheet("engine", "vllm")
    spec = load_spec("h200")
    assert spec.product_gb_s == card["bandwidth_gb_s"] * card["product_share"]
    assert spec.attention_gb_s == card["bandwidth_gb_s"] * engine["attention_share"]
    assert spec.product_tflops == card["peak_tflops"] * card["peak_share"]


def test_a_product_of_two_files_names_both() -> None:
    said = load_spec("h200").source("cpu_op_us")
    assert said.startswith("derived: kernel_ops of vllm, 3.803 (fitted: ")
    assert " x op_us of server, 10.6 (derived: " in said


def test_without_a_choice_it_is_vllm_on_its_usual_host_and_numpy_on_the_laptop() -> None:
    assert load_spec("h200") == load_spec("h200", "server", "vllm")
    laptop = load_spec("laptop-cpu")
    assert (laptop.host, laptop.engine) == ("laptop", "numpy")
    assert load_spec("h200", engine="transformers").ops == "hf56"
    assert load_spec("h200", engine="launch-bound").ops == "fused5"


@pytest.mark.parametrize("name", spec_names())
def test_a_copy_is_slower_than_the_datasheet_and_a_graph_node_closer_than_a_launch(
    name: str,
) -> None:
    spec = load_spec(name)
    assert spec.link_gb_s < spec.copy_bandwidth_gb_s < spec.bandwidth_gb_s
    assert spec.product_gb_s < spec.bandwidth_gb_s
    assert spec.cpu_launch_us < spec.cpu_op_us
    assert spec.reserved_bytes < spec.vram_bytes
    if name != "laptop-cpu":  # where nothing is queued, a replayed list has the wider gaps
        assert spec.graph_gap_us < spec.stream_gap_us


# ---- what an interval is


def test_an_interval_is_a_factor_to_both_sides_and_wider_for_eager() -> None:
    spec = load_spec("h200")
    for mode in ("NONE", "PIECEWISE", "FULL"):
        low, high = spec.interval(10.0, mode)
        assert low < 10 < high
        assert low * high == pytest.approx(100)
        assert math.log(high / 10) == pytest.approx(spec.missed[mode])
    widths = {mode: spec.interval(1.0, mode)[1] for mode in ("NONE", "FULL")}
    assert widths["NONE"] > widths["FULL"]


def test_where_nothing_was_ever_missed_the_interval_is_a_factor_of_two() -> None:
    spec = replace(load_spec("h200"), missed={})
    assert spec.interval(10.0, "FULL") == pytest.approx((5.0, 20.0))


# ---- names and sources


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"card": "h2000"}, "no card 'h2000': use .*h100, .*h200"),
        ({"card": "h200", "host": "mainframe"}, "no host 'mainframe': use desktop-2025, "),
        ({"card": "h200", "engine": "vlm"}, "no engine 'vlm': use .*nano-vllm, .*vllm"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(chosen: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        load_spec(**chosen)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        load_spec(tmp_path / "nowhere.json")


def test_names_are_found_in_any_case() -> None:
    assert load_spec("RTX4090", "Server", "vLLM") == load_spec("rtx4090", "server", "vllm")


def test_a_changed_figure_does_not_keep_its_source() -> None:
    spec = replace(load_spec("h200"), cpu_op_us=1.0)
    assert spec.source("cpu_op_us") == "set by the program: not from a file"
    assert spec.source("sync_us") == load_spec("h200").source("sync_us")
    with pytest.raises(ValueError, match=re.escape("no figure 'name'")):
        spec.source("name")
