"""Installed libraries as link-only targets, @system//:<name>.

Their headers are on the compiler's own search path, so they are not inputs of
any action: a compile stays cheap, and an upgrade of a package needs
`bazel clean`.
"""

_ABSL = [
    "absl_any_invocable",
    "absl_base",
    "absl_bind_front",
    "absl_btree",
    "absl_cleanup",
    "absl_cord",
    "absl_failure_signal_handler",
    "absl_fixed_array",
    "absl_flat_hash_map",
    "absl_flat_hash_set",
    "absl_function_ref",
    "absl_hash",
    "absl_inlined_vector",
    "absl_node_hash_map",
    "absl_numeric",
    "absl_random_random",
    "absl_span",
    "absl_stacktrace",
    "absl_status",
    "absl_statusor",
    "absl_str_format",
    "absl_strings",
    "absl_symbolize",
    "absl_synchronization",
    "absl_time",
]

# name -> (packages for pkg-config, plain link flags, defines, deps)
_LIBRARIES = {
    "absl": struct(packages = _ABSL, deps = []),
    "benchmark": struct(packages = ["benchmark"], deps = []),
    "cli11": struct(packages = [], deps = []),
    "grpc": struct(packages = ["grpc++"], deps = [":protobuf", ":absl"]),
    "gtest": struct(packages = ["gmock"], deps = []),
    "gtest_main": struct(packages = ["gmock_main", "gmock"], deps = []),
    "highway": struct(packages = ["libhwy"], defines = ["HWY_SHARED_DEFINE"], deps = []),
    "isal": struct(packages = ["libisal"], deps = []),
    "nlohmann_json": struct(packages = [], deps = []),
    "onednn": struct(packages = [], links = ["-ldnnl"], deps = []),
    "openssl": struct(packages = ["libssl", "libcrypto"], deps = []),
    "protobuf": struct(packages = ["protobuf"], deps = []),
    "spdlog": struct(
        packages = ["spdlog"],
        defines = ["SPDLOG_COMPILED_LIB", "SPDLOG_FMT_EXTERNAL"],
        deps = [],
    ),
    "sqlite3": struct(packages = ["sqlite3"], deps = []),
    "yaml_cpp": struct(packages = ["yaml-cpp"], deps = []),
    "zstd": struct(packages = ["libzstd"], deps = []),
}

def _last_of_each(flags):
    """Drops repeats and keeps the last, which is what a one-pass linker needs."""
    kept = []
    seen = {}
    for flag in reversed(flags):
        if flag not in seen:
            seen[flag] = True
            kept.append(flag)
    return list(reversed(kept))

def _pkg_config(ctx, packages, static):
    args = ["pkg-config", "--libs"] + (["--static"] if static else []) + packages
    got = ctx.execute(args)
    if got.return_code != 0:
        fail("pkg-config %s failed (run deploy/setup.sh):\n%s" % (" ".join(packages), got.stderr))
    flags = [f for f in got.stdout.strip().split(" ") if f and not f.startswith("-Wl,")]
    return _last_of_each([f for f in flags if f not in ("-latomic", "-pthread")])

def _archives(flags, archives):
    """-lx becomes -l:libx.a where that archive is installed."""
    result = []
    for flag in flags:
        file = "lib%s.a" % flag[2:]
        # glibc's own archives stay dynamic.
        keep = flag in ("-ldl", "-lrt", "-lm", "-lpthread") or file not in archives
        result.append(flag if keep else "-l:" + file)
    return result

def _system_libraries_impl(ctx):
    if not ctx.which("pkg-config"):
        fail("pkg-config is not installed; run deploy/setup.sh")
    listed = ctx.execute(["sh", "-c", "cd /usr/lib/$(gcc -print-multiarch) && ls lib*.a"])
    archives = {name: True for name in listed.stdout.split("\n")}
    build = [
        'package(default_visibility = ["//visibility:public"])',
        'config_setting(name = "static", values = {"define": "weft_link=static"})',
    ]
    for name, lib in _LIBRARIES.items():
        shared = list(getattr(lib, "links", []))
        static = list(shared)
        if lib.packages:
            shared += _pkg_config(ctx, lib.packages, static = False)
            static += _pkg_config(ctx, lib.packages, static = True)
        if shared:
            # Only what is used is named in the binary, so start-up loads no more.
            shared = ["-Wl,--as-needed"] + shared
            static = ["-Wl,--as-needed", "-Wl,-rpath,$$ORIGIN/lib"] + _archives(static, archives)
        build.append("""
cc_library(
    name = {name},
    defines = {defines},
    linkopts = select({{
        ":static": {static},
        "//conditions:default": {shared},
    }}),
    deps = {deps},
)""".format(
            name = repr(name),
            defines = repr(getattr(lib, "defines", [])),
            static = repr(static),
            shared = repr(shared),
            deps = repr(lib.deps),
        ))
    ctx.file("BUILD", "\n".join(build) + "\n")

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    local = True,
)
