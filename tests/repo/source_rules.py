#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that a text search can check.

Reads the tracked files of the work tree, not copies in the sandbox, so that a
new file is covered without a line in any BUILD file.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

CPP = {".h", ".cc", ".cu", ".cuh"}
LINES = 700
TEST_LINES = 1000

# Built from parts so that this file does not break its own rules.
UNTRACKED = re.compile(r"\bTO" + r"DO\b(?!\(#\d+\): )")
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:wo" + r"rk|ro" + r"ot)/")
ENV_READ = re.compile(r"\b(?:secure_)?geten" + r"v\s*\(")


def tracked_files(root):
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in listed.split("\0"):
        path = pathlib.Path(root, name)
        if name and path.is_file() and not path.is_symlink():
            yield name, path


def is_cpp(name):
    return pathlib.PurePath(name).suffix in CPP


def is_test(name):
    return name.startswith("tests/") or pathlib.PurePath(name).stem.endswith("_test")


def check_length(texts):
    for name, text in texts.items():
        budget = TEST_LINES if is_test(name) else LINES
        lines = text.count("\n")
        if is_cpp(name) and lines > budget:
            yield f"{name}: {lines} lines, budget {budget}: split it by concept"


def check_environment(texts):
    readers = [name for name, text in texts.items() if is_cpp(name) and ENV_READ.search(text)]
    if len(readers) > 1:
        yield "the environment is read in more than one file: " + ", ".join(readers)


def each_line(texts, pattern, message):
    for name, text in texts.items():
        if pattern.search(text):
            for number, line in enumerate(text.split("\n"), 1):
                if pattern.search(line):
                    yield f"{name}:{number}: {message}: {line.strip()[:100]}"


def check_todo(texts):
    # Pages explain the rule, and so name the word.
    code = {name: text for name, text in texts.items() if not name.endswith(".md")}
    return each_line(code, UNTRACKED, "needs an issue, as in (#12): what")


def check_machine_paths(texts):
    return each_line(texts, MACHINE_PATH, "names a path of one machine")


def check_format(texts, root):
    if not shutil.which("clang-format"):
        return []
    names = [name for name in texts if is_cpp(name)]
    halves = [half for half in (names[::2], names[1::2]) if half]

    def run(half):
        return subprocess.run(
            ["clang-format", "--dry-run", "-Werror", "--ferror-limit=1", *half],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        ).stderr

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        errors = "\n".join(pool.map(run, halves))
    dirty = re.findall(r"^(\S+?):\d+:\d+: error: code should be clang-formatted", errors, re.M)
    return [f"{name}: run deploy/format.sh" for name in sorted(set(dirty))]


def write_report(results):
    path = os.environ.get("XML_OUTPUT_FILE")
    if not path:
        return
    suite = ElementTree.Element("testsuite", name="SourceRules", tests=str(len(results)))
    for rule, broken in results.items():
        case = ElementTree.SubElement(suite, "testcase", name=rule, classname="SourceRules")
        if broken:
            ElementTree.SubElement(case, "failure", message="\n".join(broken))
    ElementTree.ElementTree(suite).write(path)


def main():
    # In a test this is a link in the runfiles to the file in the work tree.
    root = pathlib.Path(sys.argv[1]).resolve().parent
    texts = {}
    for name, path in tracked_files(root):
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # Not text.
    results = {
        "Length": list(check_length(texts)),
        "EnvironmentReads": list(check_environment(texts)),
        "OpenWork": list(check_todo(texts)),
        "MachinePaths": list(check_machine_paths(texts)),
        "Format": list(check_format(texts, root)),
    }
    write_report(results)
    for rule, broken in results.items():
        print(f"{'FAILED' if broken else 'OK    '} {rule}")
        for line in broken:
            print(f"  {line}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
