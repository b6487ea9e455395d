#include "worker/exec/link/spec_from_proto.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

#include "fabric/wire/convert_plan.h"
#include "tests/support/gpt_plan.h"

namespace weft {
namespace {

v1::MemberSpec Member() {
  testing::GptPlanSpec plan;
  plan.model = {.layers = 1, .heads = 2, .dim = 16, .context = 12, .vocab = 12};
  plan.batch = 4;
  const auto made = testing::MakeGptPlan(plan);
  EXPECT_TRUE(made.ok()) << made.status();
  v1::MemberSpec member;
  *member.mutable_plan() = wire::ToProto(*made);
  member.mutable_spec()->set_name("test");
  member.mutable_spec()->mutable_model()->mutable_gpt()->set_context(12);
  member.mutable_spec()->mutable_data()->mutable_reverse()->set_symbols(8);
  member.mutable_spec()->mutable_train()->set_steps(5);
  return member;
}

TEST(SpecFromProto, Numerics_AreTextInOneOrder) {
  std::set<std::string> texts;
  for (const auto& names : {std::vector<std::string>{"a", "b", "c", "d"}, {"d", "c", "b", "a"}}) {
    v1::MemberSpec member = Member();
    for (const std::string& name : names)
      (*member.mutable_plan()->mutable_numerics()->mutable_libraries())[name] = "1";
    const auto spec = SpecFromProto(member);
    ASSERT_TRUE(spec.ok()) << spec.status();
    texts.insert(spec->numerics_json);
  }
  EXPECT_EQ(texts.size(), 1u);
  EXPECT_NE(texts.begin()->find(R"("a":"1","b":"1","c":"1","d":"1")"), std::string::npos)
      << *texts.begin();
}

TEST(SpecFromProto, ForeignPlans_AreRefused) {
  struct Case {
    const char* what;
    void (*spoil)(v1::MemberSpec&);
  };
  const Case cases[] = {
      {"rank beyond the plan", [](v1::MemberSpec& m) { m.mutable_member()->set_rank(1); }},
      {"negative rank", [](v1::MemberSpec& m) { m.mutable_member()->set_rank(-1); }},
      {"no data", [](v1::MemberSpec& m) { m.mutable_spec()->clear_data(); }},
      {"operand outside its buffer",
       [](v1::MemberSpec& m) {
         m.mutable_plan()
             ->mutable_program()
             ->mutable_train()
             ->mutable_calls(0)
             ->mutable_outputs(0)
             ->set_offset(int64_t{1} << 50);
       }},
      {"flat buffer too small",
       [](v1::MemberSpec& m) { m.mutable_plan()->mutable_program()->set_flat_elements(64); }},
      {"unknown op",
       [](v1::MemberSpec& m) {
         m.mutable_plan()->mutable_program()->mutable_train()->mutable_calls(0)->set_op("nonsense");
       }},
      {"no shares", [](v1::MemberSpec& m) { m.mutable_plan()->clear_shares(); }},
  };
  for (const Case& c : cases) {
    v1::MemberSpec member = Member();
    c.spoil(member);
    EXPECT_FALSE(SpecFromProto(member).ok()) << c.what;
  }
  EXPECT_TRUE(SpecFromProto(Member()).ok());
}

}  // namespace
}  // namespace weft
