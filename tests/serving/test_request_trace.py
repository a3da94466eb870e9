"""Claims about reading traces: every format, and what a bad row does."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from mini_engine.serving.request_trace import (
    SHIPPED_TRACE,
    Columns,
    TraceRequest,
    read_trace,
    synthetic_trace,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8"))
    return path


def test_azure_csv_starts_at_zero_and_keeps_microseconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 23:59:59.9799600,4808,10\r\n"
        "2023-11-17 00:00:00.0319609,110,27",  # no line end, and a seventh digit to drop
    )
    assert read_trace(path) == [TraceRequest(0, 4808, 10), TraceRequest(52_000, 110, 27)]


def test_azure_csv_of_2024_has_time_zones(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER + "2024-05-10 00:00:00.009930+00:00,5,6\n2024-05-10 02:00:00.109930+02:00,7,8\n",
    )
    assert [r.arrival_us for r in read_trace(path)] == [0, 100_000]


def test_columns_are_found_by_name_and_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "\ufeffUser,GeneratedTokens,TIMESTAMP,ContextTokens\nx,3,2024-01-01 00:00:00,9\n\n",
    )
    assert read_trace(path) == [TraceRequest(0, 9, 3)]


def test_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '\n{"arrival_s": 1.1, "prompt_tokens": 3, "output_tokens": 4, "user": "x"}\n'
        '{"arrival_s": 1.4, "prompt_tokens": 5, "output_tokens": 6}\n',
        "t.jsonl",
    )
    first, second = read_trace(path)
    assert first == TraceRequest(0.0, 3, 4)
    assert second.arrival_us == pytest.approx(300_000, abs=1e-3)  # a nanosecond


def test_burstgpt_counts_in_seconds_and_its_failures_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "7,GPT-4,0,0,0,API log\n"
        "45.5,GPT-4,1087,230,1317,API log\n",
    )
    trace = read_trace(path)
    assert trace == [TraceRequest(0, 472, 18), TraceRequest(40_500_000, 1087, 230)]
    assert (trace.failed, trace.timed) == (1, True)


def test_mooncake_counts_in_milliseconds(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"timestamp": 27, "input_length": 30, "output_length": 4, "hash_ids": [0]}\n',
    )
    assert read_trace(path) == [TraceRequest(0, 6758, 500), TraceRequest(27_000, 30, 4)]


BENCH = '"completed": 2, "input_lens": [9, 8, 7], "output_lens": [4, 0, 3], "itls": [[], [], []]'


def test_a_result_file_of_vllm_bench_without_start_times_arrives_at_once(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, f"{{{BENCH}}}"))
    assert trace == [TraceRequest(0, 9, 4), TraceRequest(0, 7, 3)]
    assert (trace.failed, trace.timed) == (1, False)


def test_a_result_file_of_vllm_bench_has_start_times_and_may_have_many_lines(
    tmp_path: Path,
) -> None:
    trace = read_trace(write(tmp_path, f'{{\n{BENCH},\n"start_times": [70.5, 70.0, 70.25]\n}}'))
    assert trace == [TraceRequest(0, 7, 3), TraceRequest(250_000, 9, 4)]
    assert (trace.failed, trace.timed) == (1, True)


@pytest.mark.parametrize(
    "text",
    [
        'out,at,in,text\n4,1500,9,"a, b\nc"\n3,1000,8,\n',
        "at; in; out\n1500; 9; 4\n1000; 8; 3\n",
        '{"at": 1500, "in": 9, "out": 4}\n{"at": "1000", "in": 8, "out": 3, "more": []}\n',
    ],
)
def test_columns_of_ones_own_are_named_and_rows_are_sorted_by_time(
    text: str, tmp_path: Path
) -> None:
    for unit_us, gap_us in (1e6, 500e6), (1e3, 500e3):
        columns = Columns("at", "in", "out", unit_us)
        expected = [TraceRequest(0, 8, 3), TraceRequest(gap_us, 9, 4)]
        assert read_trace(write(tmp_path, text), columns) == expected


GOOD_CSV = "2023-11-16 18:00:01,5,6\n"
BAD_CSV = [
    ("2023-11-16 18:00:02,abc,6", "ContextTokens 'abc'"),
    ("2023-11-16 18:00:02,0,6", "ContextTokens '0'"),
    ("2023-11-16 18:00:02,5,-1", "GeneratedTokens '-1'"),
    ("2023-11-16 18:00:02,5,1.5", "GeneratedTokens '1.5'"),
    ("yesterday,5,6", "TIMESTAMP 'yesterday'"),
    ("2023-11-16 18:00:02,5", "2 fields"),
    ("2023-11-16 18:00:02,5,6,7", "4 fields"),
    ("\udcff", "1 fields"),
]
GOOD_JSON = '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 6}\n'
BAD_JSON = [
    ('{"arrival_s": 2, "prompt_tokens": 5', "not JSON"),
    ("[1, 2]", "[1, 2]"),
    ('{"arrival_s": 2, "prompt_tokens": 5}', "output_tokens"),
    ('{"arrival_s": -2, "prompt_tokens": 5, "output_tokens": 6}', "arrival_s -2 "),
    ('{"arrival_s": NaN, "prompt_tokens": 5, "output_tokens": 6}', "arrival_s nan "),
    ('{"arrival_s": [2], "prompt_tokens": [5], "output_tokens": []}', "have [1, 1, 0] values"),
    ('{"arrival_s": 2, "prompt_tokens": 5.0, "output_tokens": 6}', "prompt_tokens 5.0 "),
    ('{"arrival_s": 2, "prompt_tokens": true, "output_tokens": 6}', "prompt_tokens True "),
]


@pytest.mark.parametrize(
    ("start", "good", "bad", "says", "number"),
    [(HEADER, GOOD_CSV, bad, says, 3) for bad, says in BAD_CSV]
    + [("", GOOD_JSON, bad, says, 2) for bad, says in BAD_JSON],
)
def test_a_bad_row_is_named(
    start: str, good: str, bad: str, says: str, number: int, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    path.write_bytes((start + good + bad + "\n" + good).encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(f"{path} line {number}: ")) as error:
        read_trace(path)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        (HEADER, "no request in it"),
        ("2023-11-16 18:00:01,5,6\n", "line 1: columns '2023-11-16 18:00:01,5,6'"),
        ("TIMESTAMP,ContextTokens\n", "line 1: columns 'TIMESTAMP,ContextTokens'"),
        (HEADER + "2023-11-16 18:00:01,5,0", "no request in it"),
        (HEADER + "1" * (1 << 18), "line 2: field larger"),
    ],
)
def test_a_file_without_requests_or_header_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        read_trace(write(tmp_path, text))


def test_the_shipped_trace_is_the_synthetic_one() -> None:
    assert read_trace(SHIPPED_TRACE) == list(synthetic_trace(500, seed=0))


def test_synthetic_requests_arrive_at_their_rate_with_lengths_around_their_medians() -> None:
    requests = list(synthetic_trace(4000, seed=3, requests_per_s=20.0))
    assert requests == list(synthetic_trace(4000, seed=3, requests_per_s=20.0))
    assert requests != list(synthetic_trace(4000, seed=4, requests_per_s=20.0))
    assert all(a.arrival_us <= b.arrival_us for a, b in pairwise(requests))
    # Standard error of the mean gap is 1/sqrt(4000) = 1.6%, of the medians below 2.5%: 5 of them.
    assert requests[-1].arrival_us == pytest.approx(4000 / 20 * 1e6, rel=0.08)
    prompts = sorted(r.prompt_tokens for r in requests)
    outputs = sorted(r.output_tokens for r in requests)
    assert prompts[2000] == pytest.approx(600, rel=0.12)
    assert outputs[2000] == pytest.approx(150, rel=0.12)
    assert (prompts[0] >= 1, prompts[-1], outputs[-1]) == (True, 8192, 1000)
