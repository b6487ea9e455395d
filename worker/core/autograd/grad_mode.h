// Whether ops are recorded on the tape: a flag of each thread, on at first.
#pragma once

namespace weft {

bool GradEnabled();

// Sets the flag for a scope.
class GradModeScope {
 public:
  explicit GradModeScope(bool enabled);
  ~GradModeScope();
  GradModeScope(const GradModeScope&) = delete;
  GradModeScope& operator=(const GradModeScope&) = delete;

 private:
  bool before_;
};

// Nothing is recorded in its scope.
class NoGradScope : public GradModeScope {
 public:
  NoGradScope() : GradModeScope(false) {}
};

}  // namespace weft
