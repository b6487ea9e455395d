#include "fabric/opset/opset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"

#include "fabric/base/check.h"
#include "fabric/base/hash.h"
#include "fabric/base/suggest.h"

namespace weft {
namespace {

constexpr const char* kAttrTypeNames[] = {"bool", "int", "float", "string", "ints"};

std::string Describe(const std::vector<TensorMeta>& metas) {
  return absl::StrJoin(metas, ", ", [](std::string* out, const TensorMeta& m) {
    absl::StrAppend(out, ToString(m));
  });
}

Status CheckArity(const OpDef& op, size_t count) {
  const size_t most = op.inputs.size();
  const size_t least = most - op.optional_inputs;
  if (count >= least && (count <= most || op.variadic)) return absl::OkStatus();
  return InvalidArgument("takes ", least,
                         op.variadic     ? " or more"
                         : least == most ? ""
                                         : absl::StrCat(" to ", most),
                         " inputs (", absl::StrJoin(op.inputs, ", "), "), got ", count);
}

Status CheckAttrs(const OpDef& op, const Attrs& attrs) {
  for (const auto& [name, value] : attrs.map()) {
    const auto def = std::find_if(op.attrs.begin(), op.attrs.end(),
                                  [&name](const AttrDef& d) { return d.name == name; });
    if (def == op.attrs.end()) {
      std::vector<std::string> known;
      for (const AttrDef& d : op.attrs) known.push_back(d.name);
      return InvalidArgument("unknown attribute '", name, "'", DidYouMean(name, known));
    }
    if (value.index() != static_cast<size_t>(def->type)) {
      return InvalidArgument("attribute '", name, "' is ", kAttrTypeNames[value.index()],
                             ", wants ", kAttrTypeNames[static_cast<size_t>(def->type)]);
    }
  }
  for (const AttrDef& def : op.attrs) {
    if (def.required && !attrs.Has(def.name))
      return InvalidArgument("attribute '", def.name, "' is missing");
  }
  return absl::OkStatus();
}

}  // namespace

void OpSet::Add(OpDef def) {
  WEFT_CHECK(!def.name.empty() && def.infer != nullptr);
  const bool fresh = index_.emplace(def.name, ops_.size()).second;
  WEFT_CHECK(fresh);
  ops_.push_back(std::move(def));
}

const OpDef* OpSet::Find(absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &ops_[it->second];
}

StatusOr<const OpDef*> OpSet::Get(absl::string_view name) const {
  if (const OpDef* op = Find(name)) return op;
  std::vector<std::string> known;
  for (const OpDef& op : ops_) known.push_back(op.name);
  return NotFound("no op '", name, "'", DidYouMean(name, known));
}

std::string OpSet::Digest() const {
  Sha256 sha;
  for (const OpDef& op : ops_) {
    std::string row =
        absl::StrCat(op.name, "|", absl::StrJoin(op.inputs, ","), "|", op.optional_inputs,
                     op.variadic, "|", absl::StrJoin(op.outputs, ","), "|", op.labels, "|",
                     static_cast<int>(op.alias), op.alias_count, op.differentiable, op.random);
    for (const AttrDef& a : op.attrs) {
      absl::StrAppend(&row, "|", a.name, ":", kAttrTypeNames[static_cast<size_t>(a.type)],
                      a.required);
    }
    row += '\n';
    sha.Update(row.data(), row.size());
  }
  return sha.FinishHex();
}

StatusOr<std::vector<TensorMeta>> InferOp(const OpDef& op, const std::vector<TensorMeta>& in,
                                          const Attrs& attrs) {
  Status status = CheckArity(op, in.size());
  if (status.ok()) status = CheckAttrs(op, attrs);
  if (!status.ok()) return Annotate(status, op.name);
  StatusOr<std::vector<TensorMeta>> out = op.infer({in, attrs});
  if (!out.ok()) return Annotate(out.status(), absl::StrCat(op.name, "(", Describe(in), ")"));
  for (const TensorMeta& m : *out) {
    status = CheckShape(m.dtype, m.shape.begin(), m.shape.rank());
    if (!status.ok()) return Annotate(status, absl::StrCat(op.name, "(", Describe(in), ")"));
  }
  return out;
}

int64_t FlopsOf(const OpDef& op, const std::vector<TensorMeta>& in,
                const std::vector<TensorMeta>& out, const Attrs& attrs) {
  if (op.flops) return op.flops({in, out, attrs});
  return op.alias == Alias::kReshape || op.alias == Alias::kStrided || out.empty()
             ? 0
             : out[0].elements();
}

}  // namespace weft
