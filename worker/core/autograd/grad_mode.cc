#include "worker/core/autograd/grad_mode.h"

namespace weft {
namespace {
thread_local bool enabled_here = true;
}  // namespace

bool GradEnabled() { return enabled_here; }

GradModeScope::GradModeScope(bool enabled) : before_(enabled_here) { enabled_here = enabled; }
GradModeScope::~GradModeScope() { enabled_here = before_; }

}  // namespace weft
