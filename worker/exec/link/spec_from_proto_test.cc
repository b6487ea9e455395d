#include "worker/exec/link/spec_from_proto.h"

#include <set>
#include <string>
#include <variant>

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

TEST(SpecFromProto, Data_ReachTheExecutorAsWritten) {
  v1::MemberSpec member = Member();
  member.mutable_spec()->mutable_train()->set_seed(7);
  member.mutable_spec()->mutable_model()->mutable_gpt()->set_vocab(300);
  v1::DataSpec* const data = member.mutable_spec()->mutable_data();
  data->mutable_text()->set_path("text");
  data->mutable_text()->set_tokens(v1::TOKENS_BPE);
  data->mutable_text()->set_vocab(280);
  data->mutable_text()->set_validation(0.25);
  const auto text = SpecFromProto(member);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto& bpe = std::get<data::TextOptions>(text->data);
  EXPECT_EQ(bpe.path, "text");
  EXPECT_EQ(bpe.tokens, data::TextTokens::kBpe);
  EXPECT_EQ(bpe.bpe_vocab, 280);
  EXPECT_EQ(bpe.validation, 0.25);
  EXPECT_EQ(bpe.context, 12);
  EXPECT_EQ(bpe.vocab, 300);
  EXPECT_EQ(bpe.seed, 7u);

  data->mutable_tokens()->set_path("train_*");
  data->mutable_tokens()->set_validation("val_*");
  data->mutable_tokens()->set_eval_samples(9);
  const auto tokens = SpecFromProto(member);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const auto& shards = std::get<data::TokenOptions>(tokens->data);
  EXPECT_EQ(shards.path, "train_*");
  EXPECT_EQ(shards.validation, "val_*");
  EXPECT_EQ(shards.eval_samples, 9);
  EXPECT_EQ(shards.context, 12);
  EXPECT_EQ(shards.vocab, 300);
  EXPECT_EQ(shards.seed, 7u);

  data->mutable_cifar10()->set_path("images");
  data->mutable_cifar10()->set_validation("held_out");
  const auto cifar10 = SpecFromProto(member);
  ASSERT_TRUE(cifar10.ok()) << cifar10.status();
  const auto& images = std::get<data::Cifar10Options>(cifar10->data);
  EXPECT_EQ(images.path, "images");
  EXPECT_EQ(images.validation, "held_out");
  EXPECT_EQ(images.seed, 7u);
}

}  // namespace
}  // namespace weft
