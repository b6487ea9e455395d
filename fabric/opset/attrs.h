// Attributes of a node: a small sorted map of typed constants. Standard library only, so that
// kernel files may include it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace weft {

using AttrValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

class Attrs {
 public:
  using Map = std::map<std::string, AttrValue>;

  Attrs() = default;
  Attrs(std::initializer_list<Map::value_type> items) : map_(items) {}

  // The value, or `fallback` when the name is absent. Asking for another type than the one stored
  // is a bug of ours once the node has been validated, and throws std::bad_variant_access.
  bool GetBool(const std::string& name, bool fallback = false) const {
    return Get<bool>(name, fallback);
  }
  int64_t GetInt(const std::string& name, int64_t fallback = 0) const {
    return Get<int64_t>(name, fallback);
  }
  double GetFloat(const std::string& name, double fallback = 0) const {
    return Get<double>(name, fallback);
  }
  std::string GetString(const std::string& name, std::string fallback = "") const {
    return Get<std::string>(name, std::move(fallback));
  }
  std::vector<int64_t> GetInts(const std::string& name) const {
    return Get<std::vector<int64_t>>(name, {});
  }

  bool Has(const std::string& name) const { return map_.count(name) != 0; }
  void Set(const std::string& name, AttrValue value) { map_[name] = std::move(value); }
  const Map& map() const { return map_; }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  template <typename T>
  T Get(const std::string& name, T fallback) const {
    const auto it = map_.find(name);
    return it == map_.end() ? fallback : std::get<T>(it->second);
  }
  Map map_;
};

}  // namespace weft
