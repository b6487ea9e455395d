#include "fabric/wire/yaml_tree.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace weft::wire {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

YamlPosition At(const YAML::Mark& mark) {
  return mark.is_null() ? YamlPosition{} : YamlPosition{mark.line + 1, mark.column + 1};
}

std::string Where(const std::string& filename, YamlPosition at) {
  return absl::StrCat(filename, ":", at.line, ":", at.column, ": ");
}

// Builds the tree from the parser's events. The parser knows no way to stop, so after the first
// error the events are ignored.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& filename) : filename_(filename) {}

  const Status& status() const { return status_; }
  std::shared_ptr<const YamlNode> root() const { return root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) Fail(At(mark), "a second document; write one file for each");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto node = NewNode(YamlNode::Kind::kNull, mark);
    Place(std::move(node), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!status_.ok()) return;
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) return Fail(At(mark), "an alias of a node that contains it");
    // The same content, but errors point to the alias.
    auto node = std::make_shared<YamlNode>(*found->second);
    node->at = At(mark);
    Place(std::move(node), 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!CheckTag(mark, tag)) return;
    auto node = NewNode(YamlNode::Kind::kScalar, mark);
    node->text = value;
    node->quoted = tag == "!";
    Place(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    std::shared_ptr<YamlNode> node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // of a map: the key of the next value was read
    std::string key = {};
    YamlPosition key_at = {};
    std::unordered_map<std::string, int> lines_of_keys = {};
  };

  void Fail(YamlPosition at, absl::string_view what) {
    if (status_.ok()) status_ = InvalidArgument(Where(filename_, at), what);
  }

  bool CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return true;
    Fail(At(mark), absl::StrCat("the tag '", tag, "' is not supported; remove it"));
    return false;
  }

  static std::shared_ptr<YamlNode> NewNode(YamlNode::Kind kind, const YAML::Mark& mark) {
    auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->at = At(mark);
    return node;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    if (!status_.ok() || !CheckTag(mark, tag)) return;
    if (open_.size() >= kMaxYamlDepth) {
      return Fail(At(mark), absl::StrCat("more than ", kMaxYamlDepth, " levels of nesting"));
    }
    if (!open_.empty() && open_.back().node->kind == YamlNode::Kind::kMap &&
        !open_.back().has_key) {
      return Fail(At(mark), "a list or map as a key; a key is plain text");
    }
    open_.push_back(Level{.node = NewNode(kind, mark), .anchor = anchor});
  }

  void Close() {
    if (!status_.ok()) return;
    Level level = std::move(open_.back());
    open_.pop_back();
    Place(std::move(level.node), level.anchor);
  }

  void Place(std::shared_ptr<YamlNode> node, YAML::anchor_t anchor) {
    if (!status_.ok()) return;
    if (anchor != 0) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = open_.back();
    level.node->nodes += node->nodes;
    if (level.node->nodes > kMaxYamlNodes) {
      return Fail(node->at,
                  absl::StrCat("more than ", kMaxYamlNodes, " values once aliases are followed"));
    }
    if (level.node->kind == YamlNode::Kind::kList) {
      level.node->items.push_back(std::move(node));
    } else if (level.has_key) {
      // The parser places a value that is not there at what comes next.
      if (node->kind == YamlNode::Kind::kNull && node->at.line > level.key_at.line) {
        node->at = level.key_at;
      }
      level.node->entries.push_back({level.key, level.key_at, std::move(node)});
      level.has_key = false;
    } else {
      TakeKey(*node, &level);
    }
  }

  void TakeKey(const YamlNode& node, Level* level) {
    if (node.kind != YamlNode::Kind::kScalar) {
      return Fail(node.at, "a key without a name; a key is plain text");
    }
    if (node.text == "<<") {
      return Fail(node.at, "merge keys ('<<') are not supported; write the keys out");
    }
    const auto [first, added] = level->lines_of_keys.emplace(node.text, node.at.line);
    if (!added) {
      return Fail(node.at, absl::StrCat("key '", node.text, "' was given before, in line ",
                                        first->second, "; keep one"));
    }
    level->has_key = true;
    level->key = node.text;
    level->key_at = node.at;
  }

  const std::string& filename_;
  Status status_;
  int documents_ = 0;
  std::shared_ptr<const YamlNode> root_;
  std::vector<Level> open_;
  std::unordered_map<YAML::anchor_t, std::shared_ptr<const YamlNode>> anchors_;
};

// The position of the first byte that is not UTF-8 text; false when all is well.
bool FindBadByte(absl::string_view text, YamlPosition* at, unsigned char* byte) {
  *at = {};
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t length = c < 0x80                ? 1
                          : c >= 0xC2 && c < 0xE0 ? 2
                          : c >= 0xE0 && c < 0xF0 ? 3
                          : c >= 0xF0 && c < 0xF5 ? 4
                                                  : 0;
    bool good = length > 0 && i + length <= text.size() && c != 0;
    for (size_t k = 1; good && k < length; ++k) {
      good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    }
    if (!good) {
      *byte = c;
      return true;
    }
    at->column = c == '\n' ? 1 : at->column + static_cast<int>(length);
    at->line += c == '\n' ? 1 : 0;
    i += length;
  }
  return false;
}

// The first line, up to line `last`, whose indentation has a tab: what most often lies behind a
// syntax error there. 0 when there is none.
int LineWithTabIndent(absl::string_view text, int last) {
  int line = 1;
  bool indentation = true;
  for (const char c : text) {
    if (c == '\n') {
      if (++line > last) return 0;
      indentation = true;
    } else if (indentation && c == '\t') {
      return line;
    } else if (c != ' ') {
      indentation = false;
    }
  }
  return 0;
}

Status SyntaxError(absl::string_view text, const std::string& filename, const YAML::Exception& e) {
  const YamlPosition at = At(e.mark);
  if (const int line = LineWithTabIndent(text, at.line); line > 0) {
    return InvalidArgument(Where(filename, {line, 1}),
                           "a tab in the indentation; YAML wants spaces");
  }
  return InvalidArgument(Where(filename, at), "not valid YAML: ", e.msg,
                         "; check indentation, brackets, quotes and the space after ':'");
}

}  // namespace

StatusOr<std::shared_ptr<const YamlNode>> ParseYamlTree(absl::string_view text,
                                                        const std::string& filename) {
  if (text.size() > kMaxYamlBytes) {
    return InvalidArgument(filename, ": ", text.size(), " bytes; at most ", kMaxYamlBytes,
                           " are read");
  }
  if (absl::StartsWith(text, kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  YamlPosition bad_at;
  unsigned char bad_byte = 0;
  if (FindBadByte(text, &bad_at, &bad_byte)) {
    return InvalidArgument(Where(filename, bad_at), "byte ", static_cast<int>(bad_byte),
                           " is not UTF-8 text; save the file as UTF-8");
  }
  TreeBuilder builder(filename);
  std::istringstream in{std::string(text)};
  try {
    YAML::Parser parser(in);
    while (builder.status().ok() && parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    // What was seen before is the likelier cause.
    RETURN_IF_ERROR(builder.status());
    return SyntaxError(text, filename, e);
  } catch (const std::exception& e) {
    return InvalidArgument(filename, ": not valid YAML: ", e.what());
  }
  RETURN_IF_ERROR(builder.status());
  if (builder.root() == nullptr) return std::make_shared<const YamlNode>();
  return builder.root();
}

}  // namespace weft::wire
