// The executor process: serves ExecutorService on the socket it inherits until its run ends or the
// worker goes.
#pragma once

namespace weft {

// Exit codes of an executor.
inline constexpr int kExecutorFinished = 0;   // the run ended and its result was delivered
inline constexpr int kExecutorFailed = 1;     // the run failed and its error was delivered
inline constexpr int kExecutorUsage = 2;      // the descriptors it was given are no use
inline constexpr int kExecutorOrphaned = 10;  // the worker went away

// Serves on `fd`, one end of a socket pair; `shared_memory_fd` is the descriptor all local members
// of the group inherited, or -1. Returns the process's exit code; does not return (exits) when the
// worker goes away.
int RunExecutor(int fd, int shared_memory_fd);

}  // namespace weft
