"""The example of docs/payloads.md, taken from the page."""

import re

from harness import Device
from payload_helpers import PAYLOADS, make_item
from ruamel.yaml import YAML

PAGE = (PAYLOADS.parent / "docs" / "payloads.md").read_text(encoding="utf-8")


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE).group(1)


def test_the_worked_example_works(load, measure):
    sweep = YAML(typ="safe").load(block("yaml"))
    params = {name: values[0] for name, values in sweep["matrix"].items()}
    item = make_item(params, sweep["backends"], payload=sweep["payload"])
    records = measure(load([item], sweep["payload"], block("jinja")).payload, item, Device()).records
    assert {name: (r["status"], r["reason"]) for name, r in records.items()} == {
        "numpy": ("ok", None),
        "torch": ("ok", None),
    }
    assert all(r["metrics"]["gbps"] > 0 for r in records.values())


def test_the_page_names_every_backend_of_the_payloads_it_tells_of():
    from orchestrator.rendering import Catalogue

    catalogue = Catalogue([PAYLOADS])
    told = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", PAGE, re.MULTILINE))
    for name in ("copy", "gemm_bf16", "gemm_fp4", "gemm_fp8", "gemm_int8", "quantize_fp4", "quantize_fp8"):
        words = set(re.findall(r"[\w:.-]+", told[name]))
        for backend in catalogue.find(name).header.backends:
            library, _, kernels = backend.partition(":")
            assert backend in words or {library + ":" + kernels, kernels} & words, (name, backend)
