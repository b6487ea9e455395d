#include "fabric/mesh/lower.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "fabric/base/check.h"
#include "fabric/graph/liveness.h"
#include "fabric/graph/precision.h"

namespace weft {
namespace {

// Bytes that one call, a parameter or an input brings into being; views of them share it.
struct Storage {
  Space space = Space::kArena;
  int32_t index = 0;
  int64_t offset = 0;  // in `space`; of the arena: known at the end
  int64_t bytes = 0;
  int32_t first = 0;  // calls, for the arena
  int32_t last = 0;
};

// A value: a window of a storage.
struct Place {
  int32_t storage = -1;
  int64_t offset = 0;  // bytes within the storage
  TensorMeta meta;
  Strides strides;

  bool contiguous() const { return IsContiguous(meta.shape, strides); }
};

struct PlacedCall {
  std::string op;
  std::string node;
  Attrs attrs;
  std::vector<Place> in;
  std::vector<Place> out;
};

class Lowering {
 public:
  explicit Lowering(const LowerRequest& request)
      : request_(request), graph_(request.graph), places_(graph_.values.size()) {}

  StatusOr<Lowered> Run() {
    RETURN_IF_ERROR(PlaceSources());
    for (const GraphNode& node : graph_.nodes) {
      RETURN_IF_ERROR(Annotate(LowerNode(node), absl::StrCat("node '", node.name, "'")));
    }
    for (const Pin& pin : request_.pins) PinValue(pin);
    Place kept;
    if (request_.keep >= 0) kept = Keep(request_.keep);
    return Finish(kept);
  }

 private:
  int32_t AddStorage(Storage storage) {
    storages_.push_back(storage);
    return static_cast<int32_t>(storages_.size() - 1);
  }

  Place Fresh(const TensorMeta& meta) {
    const int32_t now = static_cast<int32_t>(calls_.size());
    const int32_t id = AddStorage({Space::kArena, 0, 0, meta.bytes(), now, now});
    return {id, 0, meta, ContiguousStrides(meta.shape)};
  }

  Status PlaceSources() {
    for (const GraphParameter& p : graph_.parameters) {
      const auto offset = request_.parameter_offsets.find(p.name);
      if (offset == request_.parameter_offsets.end()) {
        return InvalidArgument("parameter '", p.name, "' is not one of the training graph's");
      }
      const TensorMeta& meta = graph_.values[p.value];
      places_[p.value] = {AddStorage({Space::kParam, 0, offset->second, meta.bytes()}), 0, meta,
                          ContiguousStrides(meta.shape)};
    }
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const ValueId v = graph_.inputs[i].value;
      const TensorMeta& meta = graph_.values[v];
      places_[v] = {AddStorage({Space::kInput, static_cast<int32_t>(i), 0, meta.bytes()}), 0, meta,
                    ContiguousStrides(meta.shape)};
    }
    return absl::OkStatus();
  }

  void Use(const Place& place) {
    storages_[place.storage].last = static_cast<int32_t>(calls_.size());
  }

  void AddCall(PlacedCall call) {
    for (const Place& place : call.in) Use(place);
    for (const Place& place : call.out) Use(place);
    calls_.push_back(std::move(call));
  }

  Place Contiguous(const Place& place, const std::string& node) {
    if (place.contiguous()) return place;
    const Place copy = Fresh(place.meta);
    AddCall({"copy", node, {}, {place}, {copy}});
    return copy;
  }

  // Where the low copy holds what `place`, in the parameters, holds in f32.
  Place InLowCopy(const Place& place) {
    constexpr int64_t kShrinks = 2;  // f32 to bf16; offsets in elements stay
    const Storage& full = storages_[place.storage];
    Place low = place;
    low.storage = AddStorage({Space::kLow, 0, full.offset / kShrinks, full.bytes / kShrinks});
    low.offset = place.offset / kShrinks;
    low.meta.dtype = DType::kBF16;
    return low;
  }

  Status LowerNode(const GraphNode& node) {
    ASSIGN_OR_RETURN(const OpDef* op, request_.ops.Get(node.op));
    if (request_.low_copy && IsNarrowingCast(graph_, node) &&
        storages_[places_[node.in[0]].storage].space == Space::kParam) {
      places_[node.out[0]] = InLowCopy(places_[node.in[0]]);
      return absl::OkStatus();
    }
    switch (op->alias) {
      case Alias::kReshape: {
        Place place = Contiguous(places_[node.in[0]], node.name);
        place.meta = graph_.values[node.out[0]];
        place.strides = ContiguousStrides(place.meta.shape);
        places_[node.out[0]] = place;
        return absl::OkStatus();
      }
      case Alias::kStrided: {
        Place place = places_[node.in[0]];
        const TensorMeta& meta = graph_.values[node.out[0]];
        const ViewWindow window = op->view(place.meta, place.strides, meta, node.attrs);
        place.offset += window.offset * static_cast<int64_t>(SizeOf(meta.dtype));
        place.meta = meta;
        place.strides = window.strides;
        places_[node.out[0]] = place;
        return absl::OkStatus();
      }
      case Alias::kInPlace:
        return InvalidArgument("op '", node.op, "' writes its inputs, which a graph may not");
      case Alias::kNone:
        break;
    }
    PlacedCall call{node.op, node.name, node.attrs, {}, {}};
    for (ValueId v : node.in) {
      call.in.push_back(op->strided_inputs ? places_[v] : Contiguous(places_[v], node.name));
    }
    for (ValueId v : node.out) {
      places_[v] = Fresh(graph_.values[v]);
      call.out.push_back(places_[v]);
    }
    AddCall(std::move(call));
    return absl::OkStatus();
  }

  // Whether `place` is all of a storage that may still be moved out of the arena.
  bool OwnsStorage(const Place& place) const {
    const Storage& storage = storages_[place.storage];
    return storage.space == Space::kArena && place.offset == 0 && place.contiguous() &&
           place.meta.bytes() == storage.bytes;
  }

  void PinValue(const Pin& pin) {
    const Place& place = places_[pin.value];
    if (OwnsStorage(place)) {
      storages_[place.storage].space = pin.space;
      storages_[place.storage].offset = pin.offset;
      return;
    }
    Place home{AddStorage({pin.space, 0, pin.offset, place.meta.bytes()}), 0, place.meta,
               ContiguousStrides(place.meta.shape)};
    AddCall({"copy", absl::StrCat("pin.", pin.value), {}, {place}, {home}});
  }

  Place Keep(ValueId value) {
    Place place = places_[value];
    if (storages_[place.storage].space != Space::kArena || !place.contiguous()) {
      const Place copy = Fresh(place.meta);
      AddCall({"copy", absl::StrCat("keep.", value), {}, {place}, {copy}});
      place = copy;
    }
    Use(place);
    return place;
  }

  Operand ToOperand(const Place& place) const {
    const Storage& storage = storages_[place.storage];
    return {storage.space, storage.index, storage.offset + place.offset, place.meta, place.strides};
  }

  Lowered Finish(const Place& kept) {
    std::vector<Lifetime> blocks;
    std::vector<size_t> owners;
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].space != Space::kArena) continue;
      owners.push_back(i);
      blocks.push_back({storages_[i].bytes, storages_[i].first, storages_[i].last});
    }
    const ArenaLayout layout = PlaceInArena(blocks);
    for (size_t i = 0; i < owners.size(); ++i) storages_[owners[i]].offset = layout.offsets[i];

    Lowered lowered;
    lowered.section.arena_bytes = layout.bytes;
    for (PlacedCall& placed : calls_) {
      Call call{std::move(placed.op),    "default", std::move(placed.node),
                std::move(placed.attrs), {},        {}};
      for (const Place& place : placed.in) call.in.push_back(ToOperand(place));
      for (const Place& place : placed.out) call.out.push_back(ToOperand(place));
      lowered.section.calls.push_back(std::move(call));
    }
    if (kept.storage >= 0) lowered.kept = ToOperand(kept);
    return lowered;
  }

  const LowerRequest& request_;
  const Graph& graph_;
  std::vector<Place> places_;  // by ValueId
  std::vector<Storage> storages_;
  std::vector<PlacedCall> calls_;
};

}  // namespace

StatusOr<Lowered> Lower(const LowerRequest& request) { return Lowering(request).Run(); }

}  // namespace weft
