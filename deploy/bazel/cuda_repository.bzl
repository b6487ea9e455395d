"""The CUDA toolkit as @cuda, if one is installed.

Looked for on PATH, then in /usr/local/cuda. WEFT_CUDA=0 builds as if there
were none.
"""

_LINKS = {
    "cublaslt": ["-lcublasLt"],
    "cudnn": ["-lcudnn"],
    "nccl": ["-lnccl"],
    "nvrtc": ["-lnvrtc"],
}

def _find_home(ctx):
    if ctx.os.environ.get("WEFT_CUDA") == "0":
        return None
    nvcc = ctx.which("nvcc") or ctx.path("/usr/local/cuda/bin/nvcc")
    if not nvcc.exists:
        return None
    home = nvcc.realpath.dirname.dirname
    return home if home.get_child("include").get_child("cuda_runtime.h").exists else None

def _cuda_toolkit_impl(ctx):
    home = _find_home(ctx)
    ctx.file("defs.bzl", 'CUDA_ENABLED = %s\nNVCC = "%s/bin/nvcc"\n' % (bool(home), home or ""))
    build = [
        'load("@weft//deploy/bazel:constant_flag.bzl", "constant_flag")',
        'package(default_visibility = ["//visibility:public"])',
        'constant_flag(name = "on", build_setting_default = %s)' % bool(home),
        'config_setting(name = "enabled", flag_values = {":on": "True"})',
    ]
    if home:
        lib = str(home) + "/lib64"
        ctx.symlink(home.get_child("include"), "include")

        # Host code sees the C headers of the toolkit; its C++ template libraries
        # are thousands of files and only nvcc reads them.
        build.append("""
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/*.h", "include/crt/*.hpp"]),
    defines = ["WEFT_CUDA=1"],
    includes = ["include"],
)
cc_library(
    name = "cudart",
    linkopts = ["-L{lib}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
    deps = [":headers"],
)""".format(lib = lib))
        for name, links in _LINKS.items():
            build.append("""
cc_library(
    name = "{name}",
    linkopts = ["-L{lib}", "-Wl,-rpath,{lib}", "-Wl,-rpath,$$ORIGIN/lib"] + {links},
    deps = [":cudart"],
)""".format(name = name, lib = lib, links = repr(links)))
    else:
        for name in ["headers", "cudart"] + _LINKS.keys():
            build.append('cc_library(name = "%s")' % name)
    ctx.file("BUILD", "\n".join(build) + "\n")

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["WEFT_CUDA", "PATH"],
    local = True,
)
