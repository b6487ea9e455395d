// What the folder of an op must hold: kernels, a gradient or the word that there is none, test
// rows.
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "fabric/opset/opset.h"
#include "tests/ops/case_data.h"
#include "worker/core/dispatch/kernel_table.h"

namespace weft::testing {
namespace {

TEST(Ops, All_HaveKernelsOrNeedNone) {
  for (const OpDef& op : BuiltinOpSet().ops()) {
    const bool view = op.alias == Alias::kReshape || op.alias == Alias::kStrided;
    const bool has_kernel = BuiltinKernels().Find(op.name, DeviceKind::kCpu) != nullptr;
    EXPECT_EQ(has_kernel, !view && op.expand == nullptr) << op.name;
    EXPECT_EQ(op.view != nullptr, op.alias == Alias::kStrided) << op.name;
  }
}

TEST(Ops, All_HaveGradientsOrSayThatThereIsNone) {
  for (const OpDef& op : BuiltinOpSet().ops()) {
    EXPECT_EQ(op.grad != nullptr, op.differentiable) << op.name;
  }
}

TEST(Ops, All_HaveTestRows) {
  std::set<std::string> covered;
  for (const OpCase& c : AllCases()) covered.insert(c.op);
  for (const OpDef& op : BuiltinOpSet().ops()) {
    EXPECT_EQ(covered.count(op.name), 1u) << op.name << " has no row in its family's cases.cc";
  }
}

TEST(Ops, All_AreDocumented) {
  for (const OpDef& op : BuiltinOpSet().ops()) {
    EXPECT_FALSE(op.doc.empty()) << op.name;
    for (const AttrDef& attr : op.attrs)
      EXPECT_FALSE(attr.doc.empty()) << op.name << " " << attr.name;
    bool has_key = false;
    for (const AttrDef& attr : op.attrs) has_key |= attr.name == "key";
    EXPECT_EQ(has_key, op.random) << op.name;
  }
}

TEST(Rows, All_HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const OpCase& c : AllCases()) {
    EXPECT_TRUE(names.insert(NameOf(c)).second) << NameOf(c) << " is there twice";
    EXPECT_NE(BuiltinOpSet().Find(c.op), nullptr) << c.op;
  }
}

}  // namespace
}  // namespace weft::testing
