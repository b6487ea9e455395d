"""Prints "N passed, N failed" for one `bazel test` run.

Usage: count_tests.py BUILD_EVENTS.json EXIT_STATUS

Counts the cases in each test's XML report. A target without a readable report
(it is a plain script, did not build, crashed or ran out of time) counts as one.
Exits with 1 if anything failed, the build included, or nothing ran.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def read_events(path):
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # The last line, if the build was killed.
    except OSError:
        return


def count_cases(xml_path):
    """Returns (passed, failed, skipped), all 0 if there is no usable report."""
    try:
        suites = ElementTree.parse(xml_path).getroot()
    except (OSError, ElementTree.ParseError):
        return 0, 0, 0
    passed = failed = skipped = 0
    for case in suites.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.get("status") == "notrun":
            continue
        elif case.get("result") == "skipped" or case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main():
    events_path, status = sys.argv[1], int(sys.argv[2])
    overall = {}  # label -> PASSED, FLAKY, FAILED, TIMEOUT, ...
    reports = {}  # label -> shard -> XML of its last attempt
    broken = set()  # targets that did not build
    for event in read_events(events_path):
        kind = event.get("id", {})
        if "testSummary" in kind:
            overall[kind["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "testResult" in kind:
            key = kind["testResult"]
            for output in event.get("testResult", {}).get("testActionOutput", []):
                if output.get("name") == "test.xml" and "uri" in output:
                    path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                    reports.setdefault(key["label"], {})[key.get("shard", 0)] = path
        elif "targetCompleted" in kind and not event.get("completed", {}).get("success"):
            if event.get("aborted", {}).get("reason") != "SKIPPED":
                broken.add(kind["targetCompleted"]["label"])

    passed = failed = skipped = 0
    for label, outcome in sorted(overall.items()):
        good = outcome in ("PASSED", "FLAKY")
        counts = [count_cases(path) for path in reports.get(label, {}).values()]
        cases_passed, cases_failed, cases_skipped = (sum(c) for c in zip(*counts or [(0, 0, 0)]))
        if good and cases_failed == 0 and cases_passed + cases_skipped == 0:
            cases_passed = 1
        if not good and cases_failed == 0:
            cases_failed = 1  # A crash outside of any case, a time-out, a leak report.
        if cases_failed:
            print(f"failed: {label} ({outcome}, {cases_failed} cases)")
        passed += cases_passed
        failed += cases_failed
        skipped += cases_skipped
    for label in sorted(broken - set(overall)):
        print(f"failed: {label} (did not build)")
        failed += 1
    if status != 0 and failed == 0:
        print(f"failed: the build (bazel ended with {status})")
        failed += 1
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or passed == 0 or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
