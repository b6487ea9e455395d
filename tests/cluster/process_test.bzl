"""A test that drives the three real programs from Python's standard library."""

PROGRAMS = [
    "//client/cli:weft",
    "//server:weft-coordinator",
    "//worker:weft-worker",
]

def process_test(name, data = [], size = "medium", **kwargs):
    """Runs <name>.py with the programs' paths as arguments."""
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/cluster:process_test.sh"],
        args = ["$(location %s)" % name_of for name_of in [name + ".py"] + PROGRAMS],
        data = [name + ".py", "//tests/cluster:weft_case.py"] + PROGRAMS + data,
        **kwargs
    )
