"""What a backend sets for the whole process: under the newer names of torch, and for the BLAS that numpy brought."""

import numpy as np
import pytest
import torch
from harness import Call, Device, blas_threads
from payload_helpers import make_item, payload_of

CPU = Device()
X = np.arange(1.0, 65.0)

newer_torch = pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9 has only the older names"
)


def precisions():
    """Every name of float32 precision; those that torch refuses to tell are None."""
    matmul, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    found = [owner.fp32_precision for owner in (torch.backends, matmul, cudnn, cudnn.conv, cudnn.rnn, mkldnn)]
    found += [owner.fp32_precision for owner in (mkldnn.matmul, mkldnn.conv, mkldnn.rnn)]
    for read in (torch.get_float32_matmul_precision, lambda: matmul.allow_tf32, lambda: cudnn.allow_tf32):
        try:
            found.append(read())
        except RuntimeError:
            found.append(None)
    return (*found, matmul.allow_bf16_reduced_precision_reduction_split_k, torch.is_anomaly_enabled())


def splitting_no_sums():
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)


SETS = {
    "cublas": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "everything": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "cudnn": lambda: setattr(torch.backends.cudnn, "fp32_precision", "ieee"),
    "convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "the CPU's": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "the older name": lambda: torch.set_float32_matmul_precision("medium"),
    "split sums": splitting_no_sums,
    "anomalies": lambda: torch.set_anomaly_enabled(True),
}


@newer_torch
@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_what_a_backend_sets_for_float32_holds_for_it_alone(measure, capfd, sets):
    at_first = precisions()
    seen = {"a": set(), "b": set(), "reference": set()}

    def backend(name, setting):
        def run(x, out):
            seen[name].add(precisions())
            return x + 1

        def reference():
            seen["reference"].add(precisions())
            return X + 1

        def build(problem):
            setting()
            return Call(run=run, inputs=X.copy(), reference=reference)

        return build

    payload = payload_of(a=backend("a", sets), b=backend("b", lambda: None))
    records = measure(payload, make_item({}, ["a", "b"]), CPU).records
    assert {record["status"] for record in records.values()} == {"ok"}
    assert seen["b"] == seen["reference"] == {at_first}
    assert len(seen["a"]) == 1
    assert seen["a"] != {at_first}
    assert records["a"]["extra"]["settings_of_its_own"]
    assert "settings_of_its_own" not in records["b"]["extra"]
    assert precisions() == at_first
    assert "cannot be set back" not in capfd.readouterr().err


def test_threads_of_numpys_blas_are_each_backends_own(measure):
    ((name, threads, set_threads),) = blas_threads.settings()
    at_first, seen = threads(), {"a": set(), "b": set()}

    def backend(backend, change):
        def run(x, out):
            seen[backend].add(threads())
            return x @ x.T

        def build(problem):
            set_threads(threads() + change)
            x = X.reshape(8, 8).copy()
            return Call(run=run, inputs=x, reference=lambda: X.reshape(8, 8) @ X.reshape(8, 8).T)

        return build

    payload = payload_of(a=backend("a", 1), b=backend("b", 0))
    records = measure(payload, make_item({}, ["a", "b"]), CPU).records
    assert {record["status"] for record in records.values()} == {"ok"}
    assert seen == {"a": {at_first + 1}, "b": {at_first}}
    assert records["a"]["extra"]["settings_of_its_own"] == {name: str(at_first + 1)}
    assert "openblas" in name
    assert threads() == at_first
