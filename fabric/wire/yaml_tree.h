// YAML (and JSON, which is YAML) text as a tree with positions, before it means anything. Bounded
// in bytes, nodes and depth, so that hostile text costs little. Pure; immutable once parsed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"

namespace weft::wire {

inline constexpr size_t kMaxYamlBytes = 16 << 20;
inline constexpr size_t kMaxYamlNodes = 1 << 20;  // after aliases are followed
inline constexpr size_t kMaxYamlDepth = 64;

// Both from 1; columns count bytes.
struct YamlPosition {
  int line = 1;
  int column = 1;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry {
    std::string key;
    YamlPosition key_at;
    std::shared_ptr<const YamlNode> value;
  };

  Kind kind = Kind::kNull;
  YamlPosition at;
  std::string text;     // of a scalar
  bool quoted = false;  // the scalar was in quotes or a block
  std::vector<std::shared_ptr<const YamlNode>> items;
  std::vector<Entry> entries;  // keys are unique
  size_t nodes = 1;            // in this subtree, aliases followed
};

// One document. A byte order mark and CRLF are accepted; merge keys, tags and further documents are
// not. An empty text gives a null node. InvalidArgument: "<filename>:<line>:<column>: what".
StatusOr<std::shared_ptr<const YamlNode>> ParseYamlTree(absl::string_view text,
                                                        const std::string& filename);

}  // namespace weft::wire
