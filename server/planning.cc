#include "server/planning.h"

#include "fabric/wire/convert_plan.h"
#include "server/admit/admit.h"
#include "server/plan/planner.h"

namespace weft {

Planning MakePlanning(const OpSet& ops) {
  Planning planning;
  planning.admit = [&ops](const v1::JobSpec& spec) { return admit::Admit(ops, spec); };
  planning.plan = [&ops](const PlanQuestion& question) -> StatusOr<v1::Plan> {
    std::vector<plan::WorkerOffer> offers;
    for (const v1::Registration& worker : question.workers) {
      offers.push_back(plan::OfferOf(worker));
    }
    Numerics numerics;
    plan::PlanOptions options;
    options.ranks = question.ranks;
    if (question.numerics != nullptr) {
      numerics = wire::FromProto(*question.numerics);
      options.numerics = &numerics;
    }
    ASSIGN_OR_RETURN(const Plan plan, plan::MakePlan(ops, question.spec, offers, options));
    return wire::ToProto(plan);
  };
  return planning;
}

}  // namespace weft
