"""A test of what a target may reach through its dependencies."""

def closure_test(name, of, forbid, allow = []):
    """Fails if the dependencies of a target name a forbidden label.

    Args:
      name: of the test.
      of: the target, with its package in full: "//server:weft-coordinator".
      forbid: grep patterns (ERE) of labels.
      allow: patterns of labels that are fine all the same.
    """
    native.genquery(
        name = name + "_closure",
        expression = "deps(%s)" % of,
        scope = [of],
        testonly = True,
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["closure_test.sh"],
        args = [
            "$(location :%s_closure)" % name,
            "'" + "|".join(forbid) + "'",
            "'" + "|".join(allow or ["^$$"]) + "'",
        ],
        data = [":%s_closure" % name],
    )
