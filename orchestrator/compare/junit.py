"""A comparison as JUnit XML, which every CI system shows: a slower pair is a failure, one left out is skipped.

A suite a payload and device, a test case a pair. `unclear` passes: it is no finding; its words stand in `system-out`.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from orchestrator.compare import phrases
from orchestrator.compare.values import Comparison, LeftOut, Outcome, Pair, Subject
from orchestrator.wording import visible


def render(comparison: Comparison) -> str:
    """The document. Characters that XML cannot hold are shown as escapes."""
    root = ET.Element("testsuites", name="farbench compare")
    crowd = phrases.crowded(comparison)
    for heading, pairs in phrases.groups(comparison):
        suite = ET.SubElement(root, "testsuite", name=heading)
        for pair in pairs:
            _pair(suite, pair, crowd)
    if comparison.left_out:
        suite = ET.SubElement(root, "testsuite", name="left out")
        for missing in comparison.left_out:
            _left_out(suite, missing)
    for suite in root:
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    for count in ("tests", "failures", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    for forbidden in ("\ufffe", "\uffff"):  # the only ones that `visible` lets pass and XML does not
        text = text.replace(forbidden, forbidden.encode("unicode_escape").decode("ascii"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _pair(suite: ET.Element, pair: Pair, crowd: frozenset[Subject]) -> None:
    match = pair.match
    case = ET.SubElement(
        suite,
        "testcase",
        classname=visible(match.payload),
        name=f"{phrases.label(match, crowd)} · {visible(match.subject.backend)}",
        time=f"{match.b.median_us / 1e6:.9f}",
    )
    said = "\n".join(
        f"{name}: {value}"
        for name, value in zip(phrases.COLUMNS[2:], phrases.cells(pair, [])[2:-1], strict=False)
        if value
    )
    said += f"\nverdict: {pair.outcome.value}"
    if phrases.remarks(pair):
        said += f"\n{phrases.remarks(pair)}"
    if pair.outcome is Outcome.SLOWER:
        message = f"{phrases.percent(pair.change)} (floor {phrases.percent(pair.floor, signed=False)})"
        ET.SubElement(case, "failure", type="slower", message=message).text = said
    else:
        ET.SubElement(case, "system-out").text = said


def _left_out(suite: ET.Element, missing: LeftOut) -> None:
    name = " · ".join(part for part in (missing.label, missing.row, missing.backend) if part)
    case = ET.SubElement(suite, "testcase", classname=visible(missing.payload), name=visible(name))
    ET.SubElement(case, "skipped", message=visible(missing.why))
