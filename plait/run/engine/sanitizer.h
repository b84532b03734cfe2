#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace plait {

// A tensor's bytes are free when its last reference goes, on whatever thread that is. The counts that order it behind all
// earlier uses change inside libtorch, which the thread sanitizer does not watch; these two say so. Nothing in other builds.

/// This thread drops its reference to these bytes, used until here.
inline void announce_drop([[maybe_unused]] const void* data) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(const_cast<void*>(data));
#endif
}
/// The last reference is gone: all drops lie behind.
inline void observe_drops([[maybe_unused]] const void* data) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(const_cast<void*>(data));
#endif
}

}  // namespace plait
