// weft version: this program's version, and the coordinator's when one is there.

#include "fabric/wire/version.h"

#include "nlohmann/json.hpp"

#include "client/cli/exit_code.h"
#include "client/cli/verb.h"
#include "fabric/opset/opset.h"

namespace weft::cli {

VerbBody DeclareVersion(CLI::App&) {
  return [](Session& session) -> StatusOr<int> {
    const std::string digest = BuiltinOpSet().Digest();
    nlohmann::json value = {{"version", wire::kVersion}, {"opset_digest", digest}};
    std::string text = absl::StrCat("weft ", wire::kVersion, "\nops ", digest.substr(0, 12), "\n");
    if (NamesCoordinator(session)) {
      ASSIGN_OR_RETURN(const auto client, Connect(session));
      ASSIGN_OR_RETURN(const v1::GetVersionResponse server, client->Version());
      value["coordinator"] = {{"address", client->address()},
                              {"version", server.version()},
                              {"opset_digest", server.opset_digest()}};
      absl::StrAppend(&text, "coordinator ", server.version(), " at ", client->address(), "\nops ",
                      server.opset_digest().substr(0, 12), "\n");
    }
    session.printer.Data(session.printer.json() ? value.dump() + "\n" : text);
    return static_cast<int>(kSuccess);
  };
}

}  // namespace weft::cli
