"""cc_library, cc_binary and cc_test with the project's flags.

Includes are written from the root of the repository.
"""

WARNINGS = ["-Wall", "-Wextra", "-Werror"]

def weft_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = WARNINGS + copts, **kwargs)

# What a program needs besides its own code.
_SANITIZER_DEPS = select({
    "//deploy/bazel:tsan": ["//deploy/tsan:absl_sync"],
    "//conditions:default": [],
})

def weft_cc_binary(name, copts = [], deps = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = WARNINGS + copts,
        deps = deps + _SANITIZER_DEPS,
        **kwargs
    )

def weft_cc_test(name, copts = [], deps = [], data = [], size = "small", **kwargs):
    native.cc_test(
        name = name,
        size = size,
        copts = WARNINGS + copts,
        deps = deps + ["@system//:gtest_main"] + _SANITIZER_DEPS,
        data = data + select({
            "//deploy/bazel:tsan": ["//deploy/tsan:suppressions.txt"],
            "//conditions:default": [],
        }),
        **kwargs
    )
