"""What a person sees: numbers with what they may be trusted for, words with reasons, and nothing that acts."""

from __future__ import annotations

import pytest
from rich.console import Console

from orchestrator.report import render, to_text

OTHER = {"uuid": "GPU-2", "index": 1, "name": "RTX PRO 6000", "kind": "gpu"}
B200 = {"uuid": "GPU-3", "index": 0, "name": "B200", "kind": "gpu"}
EVIL = "</script><img src=x onerror=alert(1)> [bs=8] [/path] \x1b[31mred\x07 a|b `c` \u202eback\nnext"


@pytest.fixture
def shown(report):
    return lambda *measurements, width=160, **changes: to_text(
        render(report(*measurements, **changes)), width
    )


def line_of(text: str, start: str) -> list[str]:
    """The words of the first line that begins like that."""
    return next(line for line in text.split("\n") if line.startswith(start)).split()


def test_a_row_a_case_and_a_column_a_backend(shown, ok, bad):
    text = shown(
        ok("c1", "torch", 1234.567),
        ok("c1", "flashinfer:cutlass", 17.9, metrics={"tflops": 512.44, "peak_fraction": 0.256}),
        ok("c1", "sgl_kernel", 12.3456, metrics={"gbps": 7.5}),
        bad("c2", "torch", "unsupported", "needs sm_100"),
        ok("c2", "flashinfer:cutlass", 100.0),
        bad("c2", "sgl_kernel", "crashed", "signal 11 (SIGSEGV)"),
    )
    assert line_of(text, "Expert batch=16")[2:] == ["(decode)", "12.35", "1.45×", "17.90", "1235", "0.0145×"]
    assert "7.50 GB/s" in text
    assert "512 TFLOP/s  26%" in text
    assert line_of(text, "Expert batch=256")[2:] == ["crashed", "[1]", "100.0", "unsupported", "[2]"]
    assert "[1] crashed: signal 11 (SIGSEGV)" in text
    assert "[2] unsupported: needs sm_100" in text
    assert "µs, baseline" in text
    assert "timer graph · cache cold · speed-up over flashinfer:cutlass" in text


def test_what_of_a_note_goes_on_stands_below_its_beginning(shown, ok, bad):
    reason = "no CUDA device; flashinfer is not installed; torch is not installed"
    cells = (ok("c1", "torch", 1234.5), bad("c1", "sgl_kernel", "unsupported", reason))
    assert f"\n[1] unsupported: {reason}\n" in shown(*cells)
    narrow = shown(*cells, width=50)
    assert (
        "\n[1] unsupported: no CUDA device; flashinfer is not\n    installed; torch is not installed\n"
        in narrow
    )
    assert max(map(len, narrow.split("\n"))) <= 50


def test_how_a_number_was_measured_otherwise_than_asked_for_stands_below_it(shown, ok):
    hot = "not cold: the call reads an array of 4×4 that it is not handed"
    text = shown(
        ok("c1", "torch", 1.0, reason=hot),
        ok(
            "c1",
            "sgl_kernel",
            2.0,
            verdict="suspect",
            reasons=["noisy"],
            reason="kernels escape: measured by events",
        ),
        ok("c2", "torch", 3.0, verdict="suspect", reasons=[], reason="told once"),
    )
    assert f"] {hot}" in text
    assert "] suspect: noisy; kernels escape: measured by events" in text
    assert text.count("told once") == 1


def test_the_summary_counts_everything(shown, ok, bad):
    text = shown(
        ok("c1", "torch", 1.0),
        ok("c2", "torch", 1.0, verdict="suspect", reasons=["noisy"]),
        bad("c1", "sgl_kernel", "lost", "no route to host", host="far", device=None),
        hosts={
            "blackwell": {"state": "ok"},
            "far": {"state": "unreachable", "error": "no route to host\nhint"},
        },
    )
    lines = text.split("\n")
    assert lines[0] == "fp4-gemm-glm5 · run 20250102T030405Z-abcdef · finished · 2025-01-02 03:04 UTC"
    assert lines[1] == "3 measurements: 2 ok (1 valid, 1 suspect), 1 lost"
    assert lines[2:4] == ["host blackwell: RTX PRO 6000", "host far: unreachable: no route to host"]
    assert text.count("gemm_fp4 on") == 1  # what was lost stands in the table of the only device model


def test_a_run_in_which_all_failed_says_so(shown, bad):
    assert "2 measurements: 2 error\nNot one measurement is ok." in shown(
        bad("c1", "torch", "error", "x"), bad("c2", "torch", "error", "x")
    )
    assert "0 measurements: nothing was measured" in shown()


def test_what_was_not_measured_at_the_only_device_is_at_no_other_place(shown, ok, bad):
    lost = bad("c2", "torch", "lost", "the host ended without this measurement", device=None)
    assert "@" not in shown(ok("c1", "torch", 1.0), lost)
    assert "@ far" in shown(ok("c1", "torch", 1.0), lost.model_copy(update={"host": "far"}))


def test_an_open_run_says_how_far_it_is(shown, ok):
    text = shown(ok("c1", "torch", 1.0), ok("c2", "sgl_kernel", 2.0), state="running")
    assert "2 of 6 measurements so far: 2 ok" in text
    assert "0 of 6 measurements so far\n" in shown(state="running")


def test_an_open_run_of_unknown_length_has_not_measured_nothing(shown, ok, document):
    plan = document().plan.model_copy(update={"expected": None})
    assert "0 measurements so far\n" in shown(state="running", plan=plan)
    assert "1 measurement so far: 1 ok\n" in shown(ok("c1", "torch", 1.0), state="detached", plan=plan)


def test_a_baseline_without_a_number_gives_no_speedups(shown, ok, bad):
    text = shown(ok("c1", "torch", 1.0), bad("c1", "flashinfer:cutlass", "incorrect", "cosine 0.3"))
    assert "×" not in text


def test_suspect_times_are_marked_and_invalid_ones_never_make_a_speedup(shown, ok):
    text = shown(
        ok("c1", "torch", 2.0, verdict="suspect", reasons=["noisy", "throttled"]),
        ok("c1", "flashinfer:cutlass", 4.0),
        ok("c2", "torch", 2.0),
        ok("c2", "flashinfer:cutlass", 4.0, verdict="invalid", reasons=["contended"]),
    )
    assert line_of(text, "Expert batch=16")[-3:] == ["2.000?", "2.00×?", "[1]"]
    assert "[1] suspect: noisy, throttled" in text
    assert line_of(text, "Expert batch=256")[-4:] == ["4.000!", "[2]", "2.000", "[3]"]
    assert "[3] no speed-up: the baseline is invalid" in text
    assert "[2] invalid: contended" in text
    assert "? suspect: one of the two times" in text


def test_what_a_programs_samples_say_against_a_valid_time_is_a_note_and_marks_its_speedup(shown, ok):
    text = shown(ok("c1", "torch", 2.0, reasons=["noisy"]), ok("c1", "flashinfer:cutlass", 4.0))
    assert line_of(text, "Expert batch=16")[-3:] == ["2.000", "2.00×?", "[1]"]
    assert "[1] valid, but noisy" in text
    assert "? suspect: one of the two times" in text


def test_a_time_of_a_few_samples_makes_no_speedup_on_either_side(shown, ok):
    few = {"verdict": "suspect", "reasons": ["few_samples"]}
    text = shown(
        ok("c1", "torch", 2.0, **few),
        ok("c1", "flashinfer:cutlass", 1458.0),
        ok("c2", "torch", 2.0),
        ok("c2", "flashinfer:cutlass", 4.0, **few),
    )
    assert "×" not in text
    assert line_of(text, "Expert batch=16")[-3:] == ["1458", "2.000?", "[1]"]
    assert "[1] suspect: few_samples; no speed-up: it has too few samples" in text
    assert line_of(text, "Expert batch=256")[-4:] == ["4.000?", "[2]", "2.000", "[3]"]
    assert "[3] no speed-up: the baseline has too few samples" in text


def test_without_accuracy_a_speedup_is_unchecked(shown, ok):
    text = shown(ok("c1", "torch", 2.0, accuracy=None), ok("c1", "flashinfer:cutlass", 4.0))
    assert "2.00×*" in text
    assert "* unchecked: nothing compared the outputs" in text


@pytest.mark.parametrize(
    ("timing", "told"),
    [
        ({"timer": "events", "cache": "cold", "median_us": 2.0}, "timer events, the baseline's graph"),
        ({"timer": "graph", "cache": "hot", "median_us": 2.0}, "cache hot, the baseline's cold"),
    ],
)
def test_times_of_different_things_are_never_divided(shown, ok, timing, told):
    text = shown(ok("c1", "torch", 1.0, timing=timing), ok("c1", "flashinfer:cutlass", 4.0))
    assert "×" not in text
    assert f"no speed-up: {told}" in text


def test_payloads_and_device_models_have_tables_of_their_own(shown, ok):
    text = shown(
        ok("c1", "flashinfer:cutlass", 4.0),
        ok("c1", "torch", 1.0, device=B200, host="other"),
        ok("c1", "torch", 3.0, payload="gemm_bf16"),
    )
    headings = [line for line in text.split("\n") if " on " in line]
    assert headings == ["gemm_fp4 on RTX PRO 6000", "gemm_fp4 on B200", "gemm_bf16 on RTX PRO 6000"]
    assert "×" not in text


def test_replicated_cases_have_a_row_for_each_place(shown, ok):
    here = [ok("c1", "torch", 1.0), ok("c1", "flashinfer:cutlass", 4.0)]
    there = [
        ok("c1", "torch", 2.0, host="second", device=OTHER),
        ok("c1", "flashinfer:cutlass", 3.0, host="second", device=OTHER),
    ]
    text = shown(*here, *there, placement="replicate")
    assert "Expert batch=16 (decode) @ blackwell:0" in text
    assert "Expert batch=16 (decode) @ second:1" in text
    assert line_of(text, "Expert batch=16 (decode) @ second")[-3:] == ["3.000", "2.000", "1.50×"]
    one_host = [ok("c1", "torch", 1.0), ok("c1", "torch", 2.0, device=OTHER)]
    assert "@ blackwell:1" in shown(*one_host, placement="replicate_devices")


def test_a_case_whose_backends_ran_on_two_devices_is_one_row(shown, ok):
    text = shown(ok("c1", "torch", 1.0), ok("c1", "flashinfer:cutlass", 4.0, device=OTHER))
    assert "@ blackwell:1, blackwell:0" in text or "@ blackwell:0, blackwell:1" in text
    assert "4.00×" in text


def test_rows_of_a_script_and_times_it_did_not_give(shown, ok):
    text = shown(
        ok("c1", "bench", 5.0, row={"m": 1, "mode": "fast"}, accuracy=None),
        ok(
            "c1",
            "bench",
            None,
            row={"m": 2, "mode": "fast"},
            accuracy=None,
            metrics={"tokens_per_s": 1234.5678, "x": None},
        ),
    )
    assert line_of(text, "Expert batch=16 (decode) m=1 mode=fast")[-1] == "5.000"
    assert line_of(text, "Expert batch=16 (decode) m=2 mode=fast")[-1] == "ok"
    assert "tokens_per_s 1235" in text


def test_what_a_backend_resolved_to_is_said(shown, ok):
    assert "torch ran as torch:dequant" in shown(ok("c1", "torch", 1.0, resolved_backend="torch:dequant"))


def test_a_baseline_may_be_named_by_what_it_resolves_to(shown, ok, document):
    plan = document().plan.model_dump() | {"baselines": {"gemm_fp4": "torch:dequant"}}
    text = shown(
        ok("c1", "torch", 3.0, resolved_backend="torch:dequant"), ok("c1", "sgl_kernel", 1.0), plan=plan
    )
    assert "3.00×" in text


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_it_fits_the_width(shown, ok, bad, width):
    text = shown(
        ok("c1", "torch", 1234.567, metrics={"tflops": 812.0, "peak_fraction": 0.4}),
        ok("c1", "flashinfer:cutlass", 17.9, verdict="suspect", reasons=["noisy"]),
        bad("c1", "sgl_kernel", "unsupported", "a reason that is rather long and goes on for more than a line " * 2),
        width=width,
    )  # fmt: skip
    assert max(map(len, text.split("\n"))) <= width
    words = text.replace(":\n", ":").split()
    for expected in ("1235", "0.0145×?", "17.90?", "unsupported"):
        assert expected in words


def test_side_by_side_at_80_columns(shown, ok):
    text = shown(
        *(
            ok("c1", b, 10.0, metrics={"tflops": 812.0})
            for b in ("sgl_kernel", "flashinfer:cutlass", "torch")
        ),
        width=80,
    )
    assert line_of(text, "Expert batch=16")[-5:] == ["10.00", "1.00×", "10.00", "10.00", "1.00×"]


def test_foreign_text_is_shown_and_does_nothing(report, ok, bad):
    for width in (60, 200):
        console = Console(width=width, force_terminal=True, color_system="truecolor", legacy_windows=False)
        made = report(
            ok("c1", EVIL, 1.0, label=EVIL, device={**B200, "name": EVIL}),
            bad("c1", "torch", "error", EVIL, label=EVIL, device={**B200, "name": EVIL}),
            sweep={"name": EVIL},
            hosts={EVIL: {"state": "unreachable", "error": EVIL}},
        )
        with console.capture() as capture:
            console.print(render(made))
        text = capture.get()
        assert "\x1b[31mred" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
    for literal in ("[bs=8]", "[/path]", r"\x1b[31mred\x07", r"\u202eback\nnext"):
        assert literal in to_text(render(made), 400)


def test_a_row_says_how_many_devices_worked_together(shown, ok):
    text = shown(ok("c1", "torch", 30.0, extra={"ranks": 4}), ok("c2", "torch", 9.0))
    assert line_of(text, "Expert batch=16") == ["Expert", "batch=16", "(decode)", "(4", "devices)", "30.00"]
    assert line_of(text, "Expert batch=256") == ["Expert", "batch=256", "9.000"]
