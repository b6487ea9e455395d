"""C++ code from .proto files, by the system's protoc."""

def _generate(name, srcs, protos, suffix, flags):
    outs = []
    for src in srcs:
        outs += [src.replace(".proto", suffix + ext) for ext in (".h", ".cc")]
    native.genrule(
        name = name,
        srcs = [protos],
        outs = outs,
        cmd = "/usr/bin/protoc -I. %s %s" % (
            flags,
            " ".join([native.package_name() + "/" + src for src in srcs]),
        ),
        message = "Generating C++ for",
        visibility = ["//visibility:private"],
    )
    return outs

def _library(name, outs, deps, visibility, testonly):
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        # Not our code, so not our warnings.
        copts = ["-w"],
        deps = deps,
        visibility = visibility,
        testonly = testonly,
    )

def weft_proto_library(name, srcs, deps = [], grpc = False, visibility = None, testonly = False):
    """Makes :name (messages) and, with grpc, :name_grpc (services and messages).

    Args:
      name: the messages' cc_library; headers are "<package>/<file>.pb.h".
      srcs: .proto files of this package; imports are written from the root.
      deps: other weft_proto_library targets whose files are imported.
      grpc: also make :name_grpc; headers are "<package>/<file>.grpc.pb.h".
      visibility: of the libraries.
      testonly: of the libraries.
    """
    protos = name + "_protos"
    native.filegroup(
        name = protos,
        srcs = srcs + [_protos_of(dep) for dep in deps],
        visibility = visibility,
        testonly = testonly,
    )
    messages = _generate(name + "_gen", srcs, protos, ".pb", "--cpp_out=$(GENDIR)")
    _library(name, messages, deps + ["@system//:protobuf"], visibility, testonly)
    if grpc:
        services = _generate(
            name + "_grpc_gen",
            srcs,
            protos,
            ".grpc.pb",
            "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)",
        )
        _library(name + "_grpc", services, [":" + name, "@system//:grpc"], visibility, testonly)

def _protos_of(dep):
    if ":" not in dep:
        dep = dep + ":" + dep.split("/")[-1]
    return dep + "_protos"
