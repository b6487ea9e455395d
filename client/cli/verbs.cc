// The table of verbs.
#include "client/cli/verb.h"

namespace weft::cli {

const std::vector<Verb>& Verbs() {
  static const std::vector<Verb>* const verbs = new std::vector<Verb>{
      {"run", "Train one job on this machine and wait for it",
       "weft run configs/jobs/seqrev.yaml\n"
       "weft run job.yaml --ranks 2 --set train.steps=60 --resume -o json\n"
       "weft run job.yaml --profile=10",
       DeclareRun},
      {"submit", "Hand a job to a running coordinator",
       "weft submit job.yaml\n"
       "weft submit job.yaml --set train.seed=2 --follow",
       DeclareSubmit},
      {"list", "List jobs, newest first",
       "weft list\n"
       "weft list --limit 5 -o json",
       DeclareList},
      {"describe", "Show one job with its specification and result",
       "weft describe JOB_ID\n"
       "weft describe JOB_ID -o json",
       DeclareDescribe},
      {"logs", "Print what the ranks of a job wrote",
       "weft logs JOB_ID --rank 0 --tail 100\n"
       "weft logs JOB_ID --follow",
       DeclareLogs},
      {"watch", "Follow a job's progress to its end",
       "weft watch JOB_ID\n"
       "weft watch JOB_ID -o json",
       DeclareWatch},
      {"cancel", "End a job, with a checkpoint or without",
       "weft cancel JOB_ID\n"
       "weft cancel JOB_ID --save",
       DeclareCancel},
      {"wait", "Wait for a job's end and exit with its result",
       "weft wait JOB_ID\n"
       "weft wait JOB_ID --timeout 3600 -o json",
       DeclareWait},
      {"plan", "Show what a job needs before anything runs",
       "weft plan configs/jobs/shakespeare.yaml --set data.text.path=input.txt\n"
       "weft plan job.yaml --ranks 4 -o json",
       DeclarePlan},
      {"validate", "Check a job file without running it",
       "weft validate job.yaml\n"
       "weft validate job.yaml --set train.batch=48 -o json",
       DeclareValidate},
      {"ckpt", "List and verify checkpoints in a folder",
       "weft ckpt list runs/seqrev\n"
       "weft ckpt verify runs/seqrev",
       DeclareCkpt},
      {"sample", "Write text with a trained model",
       "weft sample runs/shakespeare --prompt 'ROMEO:' --tokens 500\n"
       "weft sample runs/shakespeare --temperature 0.5 --top-k 20 --seed 7",
       DeclareSample},
      {"doctor", "Say what this machine has, what is missing, and what to do",
       "weft doctor\n"
       "weft doctor -o json",
       DeclareDoctor},
      {"version", "Print versions of this program and of the coordinator",
       "weft version\n"
       "weft version -o json",
       DeclareVersion},
  };
  return *verbs;
}

}  // namespace weft::cli
