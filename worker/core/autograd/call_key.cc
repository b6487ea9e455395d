#include "worker/core/autograd/call_key.h"

#include <type_traits>
#include <variant>

namespace weft {
namespace {

void AppendBytes(std::string& key, const void* data, size_t bytes) {
  key.append(static_cast<const char*>(data), bytes);
}

void AppendValue(std::string& key, const AttrValue& value) {
  AppendKey(key, static_cast<int64_t>(value.index()));
  std::visit(
      [&key](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T>) {
          AppendBytes(key, &v, sizeof(v));
        } else {
          AppendKey(key, static_cast<int64_t>(v.size()));
          AppendBytes(key, v.data(), v.size() * sizeof(v[0]));
        }
      },
      value);
}

}  // namespace

void AppendKey(std::string& key, int64_t number) { AppendBytes(key, &number, sizeof(number)); }

void AppendKey(std::string& key, const Shape& dims) {
  key += static_cast<char>(dims.rank());
  AppendBytes(key, dims.begin(), dims.rank() * sizeof(int64_t));
}

std::string CallKey(const OpDef& op, const std::vector<TensorMeta>& in, const Attrs& attrs) {
  std::string key;
  key.reserve(64 + 32 * in.size());
  AppendKey(key, static_cast<int64_t>(reinterpret_cast<intptr_t>(&op)));
  AppendKey(key, static_cast<int64_t>(in.size()));
  for (const TensorMeta& m : in) {
    key += static_cast<char>(m.dtype);
    AppendKey(key, m.shape);
  }
  for (const auto& [name, value] : attrs.map()) {
    if (op.random && name == kRandomKeyAttr) continue;
    AppendKey(key, static_cast<int64_t>(name.size()));
    key += name;
    AppendValue(key, value);
  }
  return key;
}

}  // namespace weft
