"""Sweep files: the cases they expand to, and their labels and ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import FarbenchError, FileError, NothingToDo, UsageError
from orchestrator.identity import case_id
from orchestrator.sweep import Sweep, load_sweep

Load = Callable[..., Sweep]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str, *sets: str) -> Sweep:
        path = tmp_path / "sweep.yaml"
        path.write_text(text, encoding="utf-8")
        return load_sweep(path, sets)

    return load


def labels(sweep: Sweep) -> list[str]:
    return [case.label for case in sweep.cases]


def params(sweep: Sweep) -> list[dict[str, Any]]:
    return [dict(case.params) for case in sweep.cases]


# -- expansion --------------------------------------------------------------------------------------------


def test_the_cross_product_in_file_order_with_the_first_axis_slowest(load: Load) -> None:
    sweep = load("payload: p\nmatrix: {m: [16, 64], n: [2048, 768]}\n")
    assert labels(sweep) == ["m=16 n=2048", "m=16 n=768", "m=64 n=2048", "m=64 n=768"]
    assert params(sweep)[0] == {"m": 16, "n": 2048}


def test_a_mapping_spreads_its_keys_and_its_label_names_the_case(load: Load) -> None:
    sweep = load(
        "payload: p\nmatrix:\n  dtype: [a, b]\n  shape:\n    - {m: 1, n: 2, label: Small}\n    - {m: 3, n: 4}\n"
    )
    assert labels(sweep) == ["Small dtype=a", "dtype=a m=3 n=4", "Small dtype=b", "dtype=b m=3 n=4"]
    assert params(sweep)[0] == {"dtype": "a", "m": 1, "n": 2}


def test_only_the_outermost_mapping_spreads(load: Load) -> None:
    sweep = load("payload: p\nmatrix: {cfg: [{a: {b: 1}, c: [1, 2]}]}\n")
    assert params(sweep) == [{"a": {"b": 1}, "c": [1, 2]}]
    assert labels(sweep) == ['a={"b": 1} c=[1, 2]']


def test_zip_pairs_up_and_multiplies_with_the_matrix(load: Load) -> None:
    sweep = load("payload: p\nzip: {m: [1, 2], n: [10, 20]}\nmatrix: {t: [x, y]}\n")
    assert labels(sweep) == ["m=1 n=10 t=x", "m=1 n=10 t=y", "m=2 n=20 t=x", "m=2 n=20 t=y"]


def test_several_zips_multiply(load: Load) -> None:
    sweep = load("payload: p\nmatrix:\n  zip:\n    - {m: [1, 2], n: [3, 4]}\n    - {a: [5, 6], b: [7, 8]}\n")
    assert labels(sweep) == ["m=1 n=3 a=5 b=7", "m=1 n=3 a=6 b=8", "m=2 n=4 a=5 b=7", "m=2 n=4 a=6 b=8"]


def test_a_zip_may_pair_up_labels_too(load: Load) -> None:
    assert labels(load("payload: p\nzip: {m: [1, 2], label: [one, two]}\n")) == ["one", "two"]


@pytest.mark.parametrize("inside", [True, False])
def test_include_and_exclude_stand_inside_of_the_matrix_or_beside_it(load: Load, inside: bool) -> None:
    filters = (
        "include:\n  - {m: 7, n: 7, label: odd}\nexclude:\n  - {m: 1, n: 4}\n  - where: m == 2 and n > 3\n"
    )
    axes = "  m: [1, 2]\n  n: [3, 4]\n"
    indented = "".join(f"  {line}\n" for line in filters.splitlines())
    text = f"payload: p\nmatrix:\n{axes}{indented}" if inside else f"payload: p\nmatrix:\n{axes}{filters}"
    assert labels(load(text)) == ["m=1 n=3", "m=2 n=3", "odd"]


def test_an_include_with_only_where_keeps_what_holds(load: Load) -> None:
    sweep = load(
        "payload: p\nmatrix: {m: [1, 2, 3, 4]}\ninclude:\n  - where: m > 1\n  - where: m < 4\n  - {m: 9}\n"
    )
    assert labels(sweep) == ["m=2", "m=3", "m=9"]


def test_exclude_matches_typed_values_and_labels(load: Load) -> None:
    sweep = load("payload: p\nmatrix: {v: [1, 1.0, true, '1']}\nexclude: [{v: 1}]\n")
    assert params(sweep) == [{"v": 1.0}, {"v": True}, {"v": "1"}]
    sweep = load(
        "payload: p\nmatrix: {s: [{m: 1, label: A}, {m: 2, label: B}], t: [3]}\nexclude: [{label: A}]\n"
    )
    assert labels(sweep) == ["B t=3"]


def test_exclude_may_name_a_parameter_and_a_condition(load: Load) -> None:
    sweep = load("payload: p\nmatrix: {m: [1, 2], n: [3, 4]}\nexclude: [{m: 1, where: n > 3}]\n")
    assert labels(sweep) == ["m=1 n=3", "m=2 n=3", "m=2 n=4"]


def test_a_single_value_needs_no_list_and_no_axis_gives_one_case(load: Load) -> None:
    assert labels(load("payload: p\nmatrix: {m: 16, s: {a: 1}}\n")) == ["m=16 a=1"]
    assert labels(load("payload: p\n")) == ["p"]
    assert labels(load("payload: p\ninclude: [{m: 1}, {m: 2}]\n")) == ["m=1", "m=2"]


def test_names_that_mean_something_to_python_are_ordinary_axes(load: Load) -> None:
    text = "payload: p\nmatrix: {items: [1], keys: [2], name: [x], class: [3], case_id: [4], self: [5], on: [6]}\n"
    assert params(load(text)) == [
        {"items": 1, "keys": 2, "name": "x", "class": 3, "case_id": 4, "self": 5, "on": 6}
    ]


def test_values_keep_their_types_and_digits(load: Load) -> None:
    sweep = load(
        "payload: p\nmatrix: {v: [1e6, no, 0755, 12:30:45, 9007199254740993, null, '{{ 7*7 }}', '{%']}\n"
    )
    assert [p["v"] for p in params(sweep)] == [
        1e6, "no", 755, "12:30:45", 9007199254740993, None, "{{ 7*7 }}", "{%",
    ]  # fmt: skip
    assert labels(sweep)[0] == "v=1000000.0"
    assert len(sweep.warnings) == 3


def test_an_id_is_made_of_payload_and_typed_parameters_only(load: Load) -> None:
    one = load("payload: p\nmatrix: {s: [{m: 1, n: 2, label: A}]}\n").cases[0]
    other = load("name: x\npayload: p\nmatrix: {n: [2], m: [1]}\n").cases[0]
    assert one.case_id == other.case_id == case_id("p", {"m": 1, "n": 2})
    assert len(one.case_id) == 16
    assert (
        len({case_id("p", {"m": v}) for v in (1, 1.0, True, "1", None, [1])} | {case_id("q", {"m": 1})}) == 7
    )


# -- the rest of the file ---------------------------------------------------------------------------------


def test_what_a_sweep_does_not_say(load: Load) -> None:
    sweep = load("payload: p\nmatrix: {m: [1]}\n")
    (part,) = sweep.parts
    assert sweep.name == "sweep"
    assert (sweep.placement, sweep.timeout_s, sweep.compile_timeout_s, sweep.steal_after_s) == (
        "replicate", 120, 600, 300,
    )  # fmt: skip
    assert part.measure.model_dump() == {
        "cache": "cold", "timer": "auto", "min_time_ms": 50, "max_time_ms": 2000,
        "target_rel_error": 0.005, "rounds": 3, "retries": 1, "lock_clocks": False,
    }  # fmt: skip
    assert (part.backends, part.baseline, part.devices_per_case, part.script) == ((), None, 1, None)
    assert sweep.hosts.everything


@pytest.mark.parametrize(
    ("text", "names", "tags"),
    [
        ("all", (), ()),
        ("gpu1", ("gpu1",), ()),
        ("[gpu1, gpu2]", ("gpu1", "gpu2"), ()),
        ("{tags: [a, b]}", (), ("a", "b")),
        ("{tags: a, names: [x]}", ("x",), ("a",)),
    ],
)
def test_the_hosts_it_asks_for(load: Load, text: str, names: tuple[str, ...], tags: tuple[str, ...]) -> None:
    hosts = load(f"payload: p\nhosts: {text}\n").hosts
    assert (hosts.names, hosts.tags) == (names, tags)


def test_parts_inherit_how_to_measure_and_may_say_it_themselves(load: Load) -> None:
    sweep = load(
        "backends: [a, b]\nmeasure: {rounds: 5, cache: hot}\nparts:\n"
        "  - {payload: p, matrix: {m: [1]}}\n"
        "  - {payload: q, matrix: {m: [1, 2]}, backends: [c], measure: {rounds: 7}}\n"
    )
    first, second = sweep.parts
    assert (first.payload, first.backends, first.measure.rounds) == ("p", ("a", "b"), 5)
    assert (second.payload, second.backends, second.measure.rounds, second.measure.cache) == (
        "q",
        ("c",),
        7,
        "hot",
    )
    assert [(case.payload, case.part) for case in sweep.cases] == [("p", 0), ("q", 1), ("q", 1)]


def test_a_script_payload(load: Load) -> None:
    sweep = load(
        "payload:\n  script: tools/bench.py\n  args: [--eps, 0.10, --n, '{{ n }}', 0755]\n  files: [data/x.csv]\n"
        "  collect: ['*.csv']\n  results: {file: out.csv}\n  keys: [n]\nmatrix: {n: [1]}\n"
    )
    script = sweep.parts[0].script
    assert script is not None
    assert [a.text for a in script.args] == ["--eps", "0.10", "--n", "{{ n }}", "0755"]
    assert (script.name, script.python, script.results_from, script.results_format) == (
        "bench",
        True,
        "out.csv",
        "csv",
    )
    assert sweep.parts[0].backends == ("bench",)
    assert sweep.cases[0].payload == "bench"


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ("json_lines", ("stdout", "json_lines")),
        ("csv", ("stdout", "csv")),
        ("json", ("stdout", "json")),
        ("{file: a.txt, format: csv}", ("a.txt", "csv")),
        ("{file: a.jsonl}", ("a.jsonl", "json_lines")),
        ("{file: a.json}", ("a.json", "json")),
    ],
)
def test_where_a_program_leaves_its_results(load: Load, results: str, expected: tuple[str, str]) -> None:
    script = load(f"payload: {{command: [prog], results: {results}}}\n").parts[0].script
    assert script is not None
    assert (script.results_from, script.results_format) == expected
    assert not script.python


def test_dos_line_ends_and_anchors(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(
        b"\xef\xbb\xbfpayload: p\r\nmatrix:\r\n  s:\r\n    - &a {m: 1, n: 2}\r\n    - {<<: *a, m: 3}\r\n"
    )
    assert params(load_sweep(path)) == [{"m": 1, "n": 2}, {"n": 2, "m": 3}]


def test_a_sweep_as_json_holds_the_file_as_it_was(load: Load) -> None:
    text = "payload: {script: b.py, args: ['{{ n }}']}\nmatrix: {n: [1]}\naccuracy: {min_cosine: 0.9}\n"
    record = json.loads(json.dumps(load(text, "n=[2]").to_json(), allow_nan=False))
    assert record["source"] == text
    assert record["sets"] == ["n=[2]"]
    assert record["parts"][0]["script"]["args"] == ["{{ n }}"]
    assert record["parts"][0]["accuracy"] == {"min_cosine": 0.9}


# -- --set ------------------------------------------------------------------------------------------------

AXES = "payload: p\nmatrix: {m: [1, 2], s: [{a: 1, b: 2}]}\nzip: {x: [1, 2], y: [3, 4]}\n"


@pytest.mark.parametrize(
    ("setting", "name", "values"),
    [
        ("m=16", "m", {16}),
        ("m=[16, 64]", "m", {16, 64}),
        ("m=1e3", "m", {1000.0}),
        ("m=no", "m", {"no"}),
        ("m=a=b", "m", {"a=b"}),
        ("m=null", "m", {None}),
        ("s={a: 5, b: 6}", "a", {5}),
        ("x=[7, 8]", "x", {7, 8}),
        ("x=7", "x", {7}),
    ],
)
def test_a_setting_replaces_an_axis(load: Load, setting: str, name: str, values: set[Any]) -> None:
    assert {p[name] for p in params(load(AXES, setting))} == values


def test_a_setting_reaches_every_part_that_has_the_axis(load: Load) -> None:
    text = "parts:\n  - {payload: p, matrix: {m: [1]}}\n  - {payload: q, zip: {m: [2], n: [3]}}\n  - {payload: r}\n"
    assert [p.get("m") for p in params(load(text, "m=9"))] == [9, 9, None]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mm=1", "the sweep has no axis 'mm' (did you mean 'm'?); its axes: m, s, x, y"),
        ("a=1", "'a' is no axis of its own, the values of axis 's' set it"),
        ("m", "is not axis=value"),
        ("=3", "is not axis=value"),
        ("m=[1", "expected ',' or ']'"),
        ("m=.nan", ".nan is no value here"),
        ("m=[]", "no case left"),
        ("m=", "no case left"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(load: Load, setting: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(AXES, setting)
    assert str(caught.value).startswith(f"--set {setting}: ")
    assert message in str(caught.value)


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("matrix: {m: [1]}\n", 1, "payload is missing"),
        ("payload: p\nbackend: [a]\n", 2, "unknown key 'backend' (did you mean 'backends'?)"),
        ("payload: p\nmatrix:\n  m: []\n", 3, "axis 'm' is empty"),
        ("payload: p\nmatrix:\n  m:\n", 3, "axis 'm' is empty"),
        ("payload: p\nmatrix: {}\n", 2, "matrix maps axes to lists of values; here is nothing"),
        ("payload: p\nmatrix: [1]\n", 2, "matrix maps axes to lists of values; here is a list"),
        ("payload: p\nmatrix:\n  m: [1]\n  batch: [1]\n  batch: [2]\n", 5, "duplicate key 'batch'"),
        ("payload: p\nmatrix:\n  m:\n    - 1\n    - .nan\n", 5, ".nan is no value here"),
        ("payload: p\nmatrix:\n  m:\n    - 1\n    - 2\n    - 1\n", 6, "given twice (lines 4 and 6)"),
        ("payload: p\nmatrix:\n  m: [1]\ninclude:\n  - {m: 1}\n", 5, "is the same as 'm=1' on line 3"),
        ("payload: p\nmatrix:\n  m: [1]\n  s:\n    - {m: 2}\n", 4, "parameter 'm' comes from axis 'm' and from axis 's'"),
        ("payload: p\nmatrix:\n  label: [a]\n", 3, "`label` names cases and is no axis"),
        ("payload: p\nmatrix:\n  s: [{m: 1, label: [x]}]\n", 3, "label is text, not a list"),
        ("payload: p\nmatrix:\n  s: [{}]\n", 3, "an empty mapping as a value"),
        ("payload: p\nzip:\n  a: [1, 2]\n  b: [1]\n", 2, "equal length, but a has 2, b has 1"),
        ("payload: p\nzip:\n  a: 3\n", 3, "zip: 'a' is a list, not a whole number"),
        ("payload: p\nzip:\n  a: []\n", 3, "axis 'a' is empty"),
        ("payload: p\nmatrix: {m: [1]}\nexclude:\n  - {mm: 1}\n", 4, "no parameter 'mm' (did you mean 'm'?)"),
        ("payload: p\nmatrix: {m: [1]}\nexclude:\n  - where: mm > 1\n", 4, "no parameter 'mm' (did you mean 'm'?)"),
        ("payload: p\nmatrix: {m: [null]}\nexclude:\n  - where: m < 3\n", 4, "null < 3 has no value"),
        ("payload: p\nmatrix: {m: [1]}\nexclude:\n  - where: 3\n", 4, "where is an expression"),
        ("payload: p\nmatrix: {m: [1]}\nexclude: {m: 1}\n", 3, "exclude is a list of entries, not a mapping"),
        ("payload: p\nmatrix: {m: [1]}\ninclude: [{m: 2, where: m > 1}]\n", 3, "either adds a case"),
        ("payload: p\nmatrix: {a: [" + "1," * 400 + "2]}\n", 2, "given twice"),
        ("payload: p\nmeasure:\n  cash: cold\n", 3, "unknown key 'cash' in measure (did you mean 'cache'?)"),
        ("payload: p\nmeasure:\n  rounds: 0\n", 3, "measure.rounds: should be greater than or equal to 1, not 0"),
        ("payload: p\nmeasure:\n  rounds: '3'\n", 3, "measure.rounds: should be a valid integer, not '3'"),
        ("payload: p\nmeasure: {min_time_ms: 9, max_time_ms: 3}\n", 2, "min_time_ms (9) is above max_time_ms (3)"),
        ("payload: p\nplacement: shards\n", 2, "should be 'replicate', 'replicate_devices' or 'shard', not 'shards'"),
        ("payload: p\nbackends: []\n", 2, "backends: "),
        ("payload: p\nbackends:\n  - a\n  - a\n", 4, "backend 'a' is given twice"),
        ("payload: p\nbackends: [a/b]\n", 2, "'a/b' is no name of a backend"),
        ("payload: p\nbackends: [torch]\nbaseline: troch\n", 3, "none of the backends (did you mean 'torch'?)"),
        ("payload: p\nhosts: []\n", 2, "names no host and no tag"),
        ("payload: p\nhosts: {tag: [x]}\n", 2, "did you mean 'tags'?"),
        ("payload: ../p\n", 1, "is no name for one"),
        ("payload: harness\n", 1, "is reserved"),
        ("payload: p.py\n", 1, "is no name for one"),
        ("payload:\n  args: [x]\n", 1, "needs `script`"),
        ("payload:\n  script: b.py\n  command: [x]\n", 1, "one of them"),
        ("payload:\n  scirpt: b.py\n", 2, "unknown key 'scirpt' in payload (did you mean 'script'?)"),
        ("payload:\n  script: b.py\n  args: [1, null]\n", 3, "payload.args.1: should be a valid string, not null"),
        ("payload:\n  script: b.py\n  collect: [../x]\n", 3, "leaves the case's working folder"),
        ("payload:\n  script: b.py\n  results: {file: /tmp/x}\n", 3, "leaves the case's working folder"),
        ("payload:\n  script: b.py\n  results: xml\n", 3, "should be 'json', 'json_lines' or 'csv', not 'xml'"),
        ("payload:\n  script: b.py\n  files: [x/b.py]\n", 1, "two files are called 'b.py'"),
        ("payload: {script: b.py}\nmatrix: {backend: [1]}\nbackends: [x]\n", 1, "`backend` is what `backends:` gives"),
        ("payload: p\nbackends: []\n", 2, "sweep.yaml:2: backends: needs at least 1, and has 0"),
        ("payload: p\nhosts: 5\n", 2, "hosts: should be a mapping, not 5"),
        ("parts: []\n", 1, "parts is a list"),
        ("parts: [3]\n", 1, "a part is a mapping"),
        ("matrix: {m: [1]}\nparts: [{payload: p}]\n", 1, "'matrix' stands in each of the parts"),
        ("parts:\n  - payload: p\n  - payload: p\n", 3, "is the same as 'p' on line 2"),
        (
            "parts:\n  - payload: p\n    devices_per_case: 2\n  - payload: p\n    devices_per_case: 8\n",
            4,
            "is the same as 'p' on line 2; the same on another number of devices belongs in a sweep of its own",
        ),
        ("parts:\n  - payload: {script: a/x.py}\n  - payload: {script: b/x.py}\n    matrix: {m: 1}\n", 3, "is something else"),
        ("measure: {rounds: x}\nparts:\n  - payload: p\n  - payload: q\n", 1, "measure.rounds"),
        ("payload: p\nmodel: {preset: glm5, tokens: [1]}\n", 2, "no model preset 'glm5' (did you mean 'glm-5'?)"),
        ("payload: p\nmodel:\n  preset: glm-5\n  tp: 3\n  tokens: [1]\n", 4, "tp: 3 does not divide"),
        ("- 1\n", 1, "a sweep is a mapping"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_its_line(
    load: Load, tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(FileError) as caught:
        load(text)
    assert str(caught.value).startswith(f"{tmp_path / 'sweep.yaml'}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_faults_are_told_together(load: Load) -> None:
    with pytest.raises(FileError) as caught:
        load("payload: p\nbackend: [a]\nmeasure: {rounds: 0}\nplacement: x\n")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "3", "4"]


def test_a_sweep_that_excludes_everything_has_nothing_to_do(load: Load) -> None:
    with pytest.raises(NothingToDo, match="leaves no case") as caught:
        load("payload: p\nmatrix: {m: [1, 2]}\nexclude: [{where: m > 0}]\n")
    assert caught.value.exit_code == 4


def test_a_product_that_explodes_is_refused_before_it_does(load: Load) -> None:
    axes = "\n".join(f"  a{i}: {list(range(100))}" for i in range(6))
    with pytest.raises(FarbenchError, match="1000000000000 cases are more than"):
        load(f"payload: p\nmatrix:\n{axes}\n")
