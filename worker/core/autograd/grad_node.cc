#include "worker/core/autograd/grad_node.h"

#include <atomic>
#include <utility>

namespace weft {
namespace {

// Across threads and emitters, so that graphs may be joined.
std::atomic<uint64_t> next_sequence{1};

// Nodes that wait to be destroyed on this thread; null while nobody drains.
thread_local std::vector<std::shared_ptr<GradNode>>* waiting = nullptr;

}  // namespace

GradNode::GradNode() : sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)) {}

GradNode::~GradNode() {
  // Dropping an edge may destroy the node behind it, and that one the next. The outermost
  // destructor holds the list, the inner ones only add to it: the stack stays flat.
  if (waiting != nullptr) {
    for (TapeLink& edge : edges) {
      if (edge.node) waiting->push_back(std::move(edge.node));
    }
    return;
  }
  std::vector<std::shared_ptr<GradNode>> list;
  waiting = &list;
  for (TapeLink& edge : edges) {
    if (edge.node) list.push_back(std::move(edge.node));
  }
  while (!list.empty()) {
    std::shared_ptr<GradNode> node = std::move(list.back());
    list.pop_back();
    node.reset();
  }
  waiting = nullptr;
}

}  // namespace weft
