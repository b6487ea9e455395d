// "did you mean" for every place where a person types a name.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft {

// The candidate nearest to `word` by edit distance, empty when none is near (more than a third
// off).
std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates);

// "; did you mean 'x'?" or "".
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace weft
