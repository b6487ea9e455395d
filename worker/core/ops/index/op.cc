// Rows of a table by their numbers.
#include <utility>
#include <vector>

#include "fabric/opset/opset.h"
#include "worker/core/ops/families.h"
#include "worker/core/ops/infer.h"

namespace weft {
namespace {

Status CheckIds(const TensorMeta& ids) {
  if (ids.dtype == DType::kI32) return absl::OkStatus();
  return InvalidArgument("'ids' is ", NameOf(ids.dtype), ", wants i32; cast first");
}

}  // namespace

void AddIndexOps(OpSet* set) {
  OpDef embedding{
      .name = "embedding",
      .doc = "y = the rows of `table` that `ids` name; a row of NaN for an id outside of it",
      .inputs = {"table", "ids"}};
  embedding.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckNarrow(a.in[0], "table"));
    RETURN_IF_ERROR(CheckIds(a.in[1]));
    if (a.in[0].shape.rank() != 2) return InvalidArgument("'table' is not a matrix");
    Shape shape = a.in[1].shape;
    if (shape.rank() == kMaxRank) return InvalidArgument("'ids' has too many dimensions");
    shape.Append(a.in[0].shape.dim(1));
    return Metas{{a.in[0].dtype, shape}};
  };
  embedding.grad = [](const GradArgs& g) {
    Values grads(2);
    if (g.need[0]) {
      grads[0] = g.e.Emit("embedding_grad", {g.d[0], g.in[1]}, {{"rows", g.in[0].shape().dim(0)}});
    }
    return grads;
  };
  embedding.precision = Precision::kNarrow;
  embedding.labels = "_d,.->.d";
  embedding.flops = [](const CostArgs&) { return int64_t{0}; };
  set->Add(std::move(embedding));

  OpDef grad{
      .name = "embedding_grad",
      .doc =
          "dtable[v] = sum of the rows of dy whose id is v, in the order of their positions; ids "
          "outside of the table count nowhere",
      .inputs = {"dy", "ids"},
      .outputs = {"dtable"}};
  grad.attrs = {{"rows", AttrType::kInt, true, "of the table"}};
  grad.infer = [](const InferArgs& a) -> StatusOr<Metas> {
    RETURN_IF_ERROR(CheckNarrow(a.in[0], "dy"));
    RETURN_IF_ERROR(CheckIds(a.in[1]));
    const Shape& dy = a.in[0].shape;
    if (dy.rank() == 0 || Shape(dy.begin(), dy.end() - 1) != a.in[1].shape) {
      return InvalidArgument("'dy' is not one row an id");
    }
    ASSIGN_OR_RETURN(const Shape shape,
                     CheckedShape(DType::kF32, {a.attrs.GetInt("rows"), dy.dim(dy.rank() - 1)}));
    return Metas{{DType::kF32, shape}};
  };
  grad.differentiable = false;
  grad.precision = Precision::kFollow;
  grad.labels = ".d,.->_d";
  grad.flops = [](const CostArgs& c) { return c.in[0].elements(); };
  set->Add(std::move(grad));
}

}  // namespace weft
