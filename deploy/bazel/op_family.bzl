"""One family of ops: what the ops mean, how each device runs them, test rows."""

load("//deploy/bazel:cc.bzl", "weft_cc_library")
load("//deploy/bazel:cuda.bzl", "CUDA_ENABLED", "cuda_library")

# AVX2 and AVX-512 are worth their compile time. The baseline that Highway adds
# is HWY_SCALAR (one lane), so kernels must compile with one lane too.
HIGHWAY_COPTS = [
    "-O3",
    "-fno-math-errno",
    "-DHWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)",
]

KERNEL_ARGS = "//worker/core/dispatch:kernel_args"

# A kernel file registers itself, with the shared device code at hand.
CUDA_DEPS = [
    KERNEL_ARGS,
    "//worker/core/dispatch:kernel_table",
    "//worker/core/ops:cuda_kernel",
    "//worker/core/ops:families",
]

def op_family(
        name,
        op_srcs = [],
        op_deps = [],
        cpu_srcs = [],
        cpu_deps = [],
        cpu_copts = [],
        cuda_srcs = [],
        cuda_deps = [],
        cases_deps = [],
        hdrs = []):
    """Makes :op, :cpu, :cases, and :cuda (empty without a toolkit).

    Kernels see array refs and launch arguments, never a tensor, so their only
    default dependency is kernel_args.

    Args:
      name: the family, which is the folder's name; also a target with all of
        the family but the test rows.
      op_srcs: files of :op besides op.cc.
      op_deps: of :op, besides the op contract.
      cpu_srcs: files of :cpu besides cpu.cc.
      cpu_deps: of :cpu, for example "@system//:onednn".
      cpu_copts: more flags for :cpu.
      cuda_srcs: files of :cuda besides cuda.cu.
      cuda_deps: of :cuda, for example "@cuda//:cublaslt".
      cases_deps: of :cases.
      hdrs: headers shared by the kernels, for example one functor for both
        devices.
    """
    inside = ["//worker/core/ops:__pkg__", "//tests:__subpackages__"]

    weft_cc_library(
        name = "op",
        srcs = ["op.cc"] + op_srcs,
        visibility = ["//:op_list"],
        deps = ["//fabric/opset"] + op_deps,
    )
    if hdrs:
        weft_cc_library(
            name = "shared_hdrs",
            hdrs = hdrs,
            deps = [KERNEL_ARGS],
        )
    shared = [":shared_hdrs"] if hdrs else []
    weft_cc_library(
        name = "cpu",
        srcs = ["cpu.cc"] + cpu_srcs,
        copts = HIGHWAY_COPTS + cpu_copts,
        # Highway compiles the file once more for each target from this name.
        textual_hdrs = native.glob(["*-inl.h"], allow_empty = True),
        visibility = inside,
        deps = [KERNEL_ARGS, "@system//:highway"] + shared + cpu_deps,
    )
    cuda = native.glob(["cuda.cu"], allow_empty = True) + cuda_srcs
    cuda_library(
        name = "cuda",
        srcs = cuda,
        visibility = inside,
        deps = CUDA_DEPS + shared + cuda_deps,
    )
    weft_cc_library(
        name = "cases",
        testonly = True,
        srcs = ["cases.cc"],
        visibility = ["//tests:__subpackages__", "//worker/core/ops:__subpackages__"],
        deps = ["//fabric/opset", "//worker/core/ops:case"] + cases_deps,
    )
    native.cc_library(
        name = name,
        visibility = inside,
        deps = [":op", ":cpu"] + ([":cuda"] if CUDA_ENABLED else []),
    )
