// Tells the thread sanitiser about Debian's absl locks.
//
// The library is not instrumented, so without this every access that an
// absl::Mutex guards looks like a race. The linker's --wrap (see BUILD) sends
// the calls that our code makes through here.
//
// A condition may run on any thread inside the library, under a lock that the
// sanitiser cannot see, so what conditions read is not checked.

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace {

enum Order : int { kTake = 1, kGive = 2, kGiveAndTake = 3 };

// Lives around one call into the library.
class Call {
 public:
  Call(const void* object, Order order) : object_(const_cast<void*>(object)), order_(order) {
    if (order_ & kGive) __tsan_release(object_);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Call() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    // After a failed try too: that adds an order and hides nothing of ours.
    if (order_ & kTake) __tsan_acquire(object_);
  }

 private:
  void* object_;
  Order order_;
};

}  // namespace

using absl::BlockingCounter;
using absl::Condition;
using absl::CondVar;
using absl::Duration;
using absl::Mutex;
using absl::Notification;
using absl::Time;

// A member function is called as a free one whose first argument is `this`.
#define WRAP(symbol, result, order, object, params, args) \
  extern "C" result __real_##symbol params;               \
  extern "C" result __wrap_##symbol params;               \
  extern "C" result __wrap_##symbol params {              \
    Call call(object, order);                             \
    return __real_##symbol args;                          \
  }

WRAP(_ZN4absl7debian35Mutex4LockEv, void, kTake, m, (Mutex * m), (m))
WRAP(_ZN4absl7debian35Mutex10ReaderLockEv, void, kTake, m, (Mutex * m), (m))
WRAP(_ZN4absl7debian35Mutex7TryLockEv, bool, kTake, m, (Mutex * m), (m))
WRAP(_ZN4absl7debian35Mutex13ReaderTryLockEv, bool, kTake, m, (Mutex * m), (m))
WRAP(_ZN4absl7debian35Mutex6UnlockEv, void, kGive, m, (Mutex * m), (m))
WRAP(_ZN4absl7debian35Mutex12ReaderUnlockEv, void, kGive, m, (Mutex * m), (m))

// ReleasableMutexLock::Release unlocks inside the library.
WRAP(_ZN4absl7debian319ReleasableMutexLock7ReleaseEv, void, kGive, *reinterpret_cast<Mutex**>(l),
     (void* l), (l))

WRAP(_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE, void, kTake, m,
     (Mutex * m, const Condition& c), (m, c))
WRAP(_ZN4absl7debian35Mutex14ReaderLockWhenERKNS0_9ConditionE, void, kTake, m,
     (Mutex * m, const Condition& c), (m, c))
WRAP(_ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool, kTake, m,
     (Mutex * m, const Condition& c, Duration d), (m, c, d))
WRAP(_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool, kTake, m,
     (Mutex * m, const Condition& c, Time t), (m, c, t))
WRAP(_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE, void, kGiveAndTake, m,
     (Mutex * m, const Condition& c), (m, c))
WRAP(_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, bool, kGiveAndTake,
     m, (Mutex * m, const Condition& c, Duration d), (m, c, d))
WRAP(_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, bool, kGiveAndTake, m,
     (Mutex * m, const Condition& c, Time t), (m, c, t))

WRAP(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE, void, kGiveAndTake, m, (CondVar * v, Mutex* m),
     (v, m))
WRAP(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, bool, kGiveAndTake, m,
     (CondVar * v, Mutex* m, Duration d), (v, m, d))
WRAP(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, bool, kGiveAndTake, m,
     (CondVar * v, Mutex* m, Time t), (v, m, t))

WRAP(_ZN4absl7debian312Notification6NotifyEv, void, kGive, n, (Notification * n), (n))
WRAP(_ZNK4absl7debian312Notification19WaitForNotificationEv, void, kTake, n,
     (const Notification* n), (n))
WRAP(_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE, bool, kTake, n,
     (const Notification* n, Duration d), (n, d))
WRAP(_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE, bool, kTake, n,
     (const Notification* n, Time t), (n, t))

WRAP(_ZN4absl7debian315BlockingCounter14DecrementCountEv, bool, kGive, b, (BlockingCounter * b),
     (b))
WRAP(_ZN4absl7debian315BlockingCounter4WaitEv, void, kTake, b, (BlockingCounter * b), (b))
