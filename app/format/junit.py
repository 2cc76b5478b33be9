"""A suite as JUnit XML, which CI systems read. Pure."""

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(suite: dict[str, Any]) -> str:
    """A testsuite with a testcase for each check and each case of an ended suite."""
    root = Element("testsuites")
    found = SubElement(root, "testsuite", name=f"lathe suite {suite['id']}, run {suite['run_id']}")
    for check in suite["checks"]:
        one = SubElement(found, "testcase", classname="checks", name=check["name"])
        if check["state"] != "passed":
            _told(one, "failure" if check["state"] == "failed" else "skipped", check["text"], "")
    for case in suite["cases"]:
        name = f"{case['number']}: {case['prompt'][:80]}"
        one = SubElement(found, "testcase", classname="cases", name=_xml(name))
        if case["verdict"] not in ("kept", "fixed"):
            _told(one, "failure", case["verdict"], case_text(case))
    if suite["status"] != "finished":
        one = SubElement(found, "testcase", classname="checks", name="evaluations")
        _told(one, "error", f"The suite {suite['status']}.", "\n".join(errors(suite)))
    cases = found.findall("testcase")
    found.set("tests", str(len(cases)))
    for kind, label in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        found.set(label, str(sum(one.find(kind) is not None for one in cases)))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def case_text(case: dict[str, Any]) -> str:
    """What was expected of a case, and the answers after and before training."""
    wanted = f"{case['expect']} of {case['expected']!r}" if case["expect"] != "baseline" else repr(case["expected"])
    at_least = "" if case["expect"] == "baseline" else f", at least {case['threshold']:g}; found {case['score']}"
    return f"expected: {wanted}{at_least}\nafter training: {case['answer']!r}\nbefore training: {case['before']!r}"


def errors(suite: dict[str, Any]) -> list[str]:
    """Why evaluations of a suite failed."""
    found = [one["error"] for one in suite["evaluations"] if one["error"]]
    return [" ".join(str(error[name]) for name in ("field", "message", "fix") if error.get(name)) for error in found]


def _told(case: Element, kind: str, message: str, text: str) -> None:
    SubElement(case, kind, message=_xml(message)).text = _xml(text)


def _xml(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
