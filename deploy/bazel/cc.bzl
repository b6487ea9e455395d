"""cc_library, cc_binary and cc_test with the project's flags.

Includes are written from the root of the repository.
"""

WARNINGS = ["-Wall", "-Wextra", "-Werror"]

def weft_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = WARNINGS + copts, **kwargs)

def weft_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = WARNINGS + copts, **kwargs)

def weft_cc_test(name, copts = [], deps = [], size = "small", data = [], **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = WARNINGS + copts,
        deps = deps + ["@system//:gtest_main"],
        data = data + select({
            "//deploy/bazel:tsan": ["//deploy:tsan.supp"],
            "//conditions:default": [],
        }),
        **kwargs
    )
