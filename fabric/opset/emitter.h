// Emitter: the language in which models and gradient rules are written. Two implementations: the
// eager one (worker/core/dispatch) runs a kernel and records the tape, the graph builder
// (fabric/graph) appends a node; so one rule drives eager backward, graph backward and shape-only
// passes.
//
// Errors: the emitter keeps the first one and returns invalid values; emitting on invalid values
// does nothing. Formulas stay readable and the caller checks status() once. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

#include "fabric/base/status.h"
#include "fabric/base/tensor_meta.h"
#include "fabric/opset/attrs.h"

namespace weft {

// What an emitter keeps behind a Value; each implementation derives its own.
class ValueRep {
 public:
  explicit ValueRep(TensorMeta meta) : meta_(std::move(meta)) {}
  virtual ~ValueRep() = default;
  const TensorMeta& meta() const { return meta_; }

 private:
  TensorMeta meta_;
};

// An opaque result: only dtype and shape can be asked. Cheap to copy.
class Value {
 public:
  Value() = default;
  explicit Value(std::shared_ptr<const ValueRep> rep) : rep_(std::move(rep)) {}
  bool valid() const { return rep_ != nullptr; }
  const TensorMeta& meta() const { return rep_->meta(); }
  const Shape& shape() const { return rep_->meta().shape; }
  DType dtype() const { return rep_->meta().dtype; }
  const std::shared_ptr<const ValueRep>& rep() const { return rep_; }

 private:
  std::shared_ptr<const ValueRep> rep_;
};

using Values = std::vector<Value>;

class Emitter {
 public:
  virtual ~Emitter() = default;

  // All results of `op` on `inputs`. On error the results are invalid (as many as the op has).
  virtual Values EmitAll(absl::string_view op, const Values& inputs, const Attrs& attrs) = 0;

  // The first result of `op`.
  Value Emit(absl::string_view op, const Values& inputs, const Attrs& attrs = {}) {
    Values results = EmitAll(op, inputs, attrs);
    return results.empty() ? Value() : results[0];
  }

  // The first error, or OK.
  const Status& status() const { return status_; }
  // Keeps `status` if it is the first error.
  void Fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  Status status_;
};

}  // namespace weft
