// CallKey: what caches of per-call work are keyed by. A pure function.
#pragma once

#include <string>
#include <vector>

#include "fabric/opset/op_def.h"

namespace weft {

// The attribute that tells random calls apart; emitters fill it in.
inline constexpr const char* kRandomKeyAttr = "key";

// Bytes that are equal exactly for calls of the same op with the same operands' metadata and
// attributes, the key of random numbers aside (it differs in every call and changes no shape).
std::string CallKey(const OpDef& op, const std::vector<TensorMeta>& in, const Attrs& attrs);

// Appends the bytes of one number, or of a shape or strides.
void AppendKey(std::string& key, int64_t number);
void AppendKey(std::string& key, const Shape& dims);

}  // namespace weft
