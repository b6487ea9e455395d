"""cuDNN's header-only C++ interface as @cudnn_frontend, where deploy/setup.sh has put it.

Without it, or without a CUDA toolkit, the target is empty and attention has its
own kernels only: code that uses it is under `#ifdef WEFT_CUDNN_FRONTEND`.
"""

def _find_headers(ctx):
    if ctx.os.environ.get("WEFT_CUDA") == "0":
        return None
    if not ctx.which("nvcc") and not ctx.path("/usr/local/cuda/bin/nvcc").exists:
        return None
    cache = ctx.os.environ.get("XDG_CACHE_HOME")
    if not cache:
        cache = ctx.os.environ.get("HOME", "") + "/.cache"
    headers = ctx.path("%s/weft/cudnn-frontend-%s/include" % (cache, ctx.attr.version))
    return headers if headers.get_child("cudnn_frontend.h").exists else None

def _cudnn_frontend_impl(ctx):
    headers = _find_headers(ctx)
    build = ['package(default_visibility = ["//visibility:public"])']
    if headers:
        ctx.symlink(headers, "include")
        build.append("""
cc_library(
    name = "cudnn_frontend",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    # The interface does not write its graphs as JSON for us.
    defines = ["WEFT_CUDNN_FRONTEND=1", "CUDNN_FRONTEND_SKIP_JSON_LIB"],
    includes = ["include"],
    deps = ["@cuda//:cudnn", "@cuda//:nvrtc"],
)""")
    else:
        build.append('cc_library(name = "cudnn_frontend")')
    ctx.file("BUILD", "\n".join(build) + "\n")

cudnn_frontend = repository_rule(
    implementation = _cudnn_frontend_impl,
    attrs = {"version": attr.string(mandatory = True)},
    environ = ["HOME", "PATH", "WEFT_CUDA", "XDG_CACHE_HOME"],
    local = True,
)
