"""CUDA code. Where no toolkit is installed a cuda_library is its headers.

Built for Hopper (sm_90a) unless --define=cuda_arch=80 or 100a says otherwise.
"""

load("@cuda//:defs.bzl", _ENABLED = "CUDA_ENABLED", _NVCC = "NVCC")

CUDA_ENABLED = _ENABLED

_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror,-ffp-contract=off",
    # The host stubs that nvcc writes do not pass these.
    "-Xcompiler=-Wno-unused-parameter,-Wno-missing-field-initializers",
]

def _nvcc_objects_impl(ctx):
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    search = []
    for folder in context.quote_includes.to_list():
        search += ["-I", folder]
    for folder in context.includes.to_list():
        search += ["-I", folder]
    for folder in context.system_includes.to_list():
        search += ["-isystem", folder]
    defines = ["-D" + define for define in context.defines.to_list()]
    arch = ctx.var.get("cuda_arch", "90a")
    gencode = "-gencode=arch=compute_%s,code=sm_%s" % (arch, arch)
    objects = []
    for src in ctx.files.srcs:
        if src.extension != "cu":
            continue
        out = ctx.actions.declare_file(ctx.label.name + "/" + src.basename + ".o")
        objects.append(out)
        args = ctx.actions.args()
        args.add("-c", src)
        args.add("-o", out)
        args.add_all(_NVCC_FLAGS)
        args.add(gencode)
        args.add_all(ctx.attr.copts)
        args.add_all(defines)
        args.add_all(["-I", "."])
        args.add_all(search)
        ctx.actions.run(
            executable = _NVCC,
            arguments = [args],
            inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [context.headers]),
            outputs = [out],
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s" % src.short_path,
        )
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "srcs": attr.label_list(allow_files = [".cu", ".cuh", ".h"]),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], **kwargs):
    """Compiles .cu files with nvcc and links cudart statically.

    Without a toolkit nothing is compiled: code that calls it is under
    `#ifdef WEFT_CUDA`, which this target and every @cuda target define for
    what depends on them.

    Args:
      name: of the cc_library.
      srcs: .cu files and private headers.
      hdrs: public headers.
      deps: cc_library targets.
      copts: more flags for nvcc.
      **kwargs: visibility, testonly, tags, alwayslink.
    """
    objects = []
    if CUDA_ENABLED and [src for src in srcs if src.endswith(".cu")]:
        objects = [name + "_objects"]
        _nvcc_objects(
            name = name + "_objects",
            srcs = srcs,
            hdrs = hdrs,
            # @cuda's headers are nvcc's own.
            deps = deps,
            copts = copts,
            testonly = kwargs.get("testonly", False),
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        deps = deps + ["@cuda//:cudart"],
        **kwargs
    )
