"""A build setting that only its declaration sets, to select() on."""

def _impl(ctx):
    return []

constant_flag = rule(
    implementation = _impl,
    build_setting = config.bool(),
)
