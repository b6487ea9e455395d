// Matchers for Status and StatusOr: EXPECT_OK, ASSERT_OK, ASSERT_OK_AND_ASSIGN, and IsStatus(code,
// part of the message) for EXPECT_THAT.
#pragma once

#include <ostream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric/base/status.h"

namespace weft::testing {

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const StatusOr<T>& result) {
  return result.status();
}

class StatusMatcher {
 public:
  StatusMatcher(absl::StatusCode code, std::string part) : code_(code), part_(std::move(part)) {}

  template <typename T>
  bool MatchAndExplain(const T& result, ::testing::MatchResultListener* listener) const {
    const Status& status = StatusOf(result);
    *listener << "which is " << status.ToString();
    return status.code() == code_ && std::string(status.message()).find(part_) != std::string::npos;
  }
  void DescribeTo(std::ostream* os) const {
    *os << "has code " << absl::StatusCodeToString(code_) << " and says \"" << part_ << "\"";
  }
  void DescribeNegationTo(std::ostream* os) const {
    *os << "has not code " << absl::StatusCodeToString(code_) << " or does not say \"" << part_
        << "\"";
  }

 private:
  absl::StatusCode code_;
  std::string part_;
};

inline ::testing::PolymorphicMatcher<StatusMatcher> IsStatus(absl::StatusCode code,
                                                             std::string part = "") {
  return ::testing::MakePolymorphicMatcher(StatusMatcher(code, std::move(part)));
}
inline ::testing::PolymorphicMatcher<StatusMatcher> IsOk() {
  return IsStatus(absl::StatusCode::kOk);
}

}  // namespace weft::testing

#define EXPECT_OK(expr) EXPECT_THAT((expr), ::weft::testing::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::weft::testing::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  WEFT_ASSERT_OK_AND_ASSIGN(WEFT_CONCAT(_result_, __LINE__), lhs, expr)
#define WEFT_ASSERT_OK_AND_ASSIGN(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  ASSERT_OK(tmp);                                 \
  lhs = std::move(tmp).value()
